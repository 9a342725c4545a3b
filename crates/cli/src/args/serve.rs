//! Options of `millstream serve`.

use clap::Args;
use clap::builder::BoolishValueParser;

use crate::size::Size;

/// `millstream serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_HELP)]
pub(crate) struct ServeArgs {
    /// A folder, a name in the Hugging Face cache, or an alias
    #[arg(default_value = crate::builtin::DEFAULT)]
    pub(crate) model: String,

    /// How to serve.
    #[command(flatten)]
    pub(crate) service: ServiceArgs,

    /// How the model is loaded.
    #[command(flatten)]
    pub(crate) engine: super::EngineArgs,

    /// What may draft.
    #[command(flatten)]
    pub(crate) speculation: super::SpeculationArgs,

    /// Draft this many tokens in every round, whether it pays or not: for tests
    #[arg(long, value_name = "COUNT", env = "MILLSTREAM_FIXED_DRAFT", hide = true,
          value_parser = super::at_least_one)]
    pub(crate) fixed_draft: Option<usize>,
}

/// How a model is served. These may be in the file of settings.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServiceArgs {
    /// Address to listen on; 0.0.0.0 is every network this computer is in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "MILLSTREAM_HOST")]
    pub(crate) host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "MILLSTREAM_PORT")]
    pub(crate) port: u16,

    /// Requests per batch
    #[arg(long, value_name = "COUNT", default_value_t = 8, env = "MILLSTREAM_PARALLEL",
          value_parser = super::at_least_one)]
    pub(crate) parallel: usize,

    /// Queue length in answers; beyond it 503 with Retry-After
    #[arg(long, value_name = "COUNT", default_value_t = 256, env = "MILLSTREAM_QUEUE")]
    pub(crate) queue: usize,

    /// Key that every request must show; may be given several times
    #[arg(
        long,
        value_name = "KEY",
        env = "MILLSTREAM_API_KEY",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) api_key: Vec<String>,

    /// Name that requests may reach the server by, such as `chat.example` or `*.chat.example`; may be given several times
    #[arg(long, value_name = "NAME", env = "MILLSTREAM_ALLOW_HOST", value_delimiter = ',',
          value_parser = host_name)]
    pub(crate) allow_host: Vec<String>,

    /// Origin whose web pages may use the server, such as `https://chat.example`; may be given several times
    #[arg(long, value_name = "ORIGIN", env = "MILLSTREAM_ALLOW_ORIGIN", value_delimiter = ',')]
    pub(crate) allow_origin: Vec<String>,

    /// Largest request
    #[arg(long, value_name = "SIZE", default_value = "32M", env = "MILLSTREAM_BODY_LIMIT")]
    pub(crate) body_limit: Size,

    /// Timeout for sending a request or reading nothing of an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = "MILLSTREAM_PATIENCE",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) patience: u64,

    /// Seconds to finish running requests after a termination signal
    #[arg(long, value_name = "SECONDS", default_value_t = 30, env = "MILLSTREAM_DRAIN")]
    pub(crate) drain: u64,

    /// Serve no web page
    #[arg(long, env = "MILLSTREAM_NO_PAGE", value_parser = BoolishValueParser::new())]
    pub(crate) no_page: bool,
}

/// A name as requests have it in `Host`, with a star in the place of its first parts or alone.
fn host_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let plain = name.strip_prefix("*.").unwrap_or(name);
    let is_name = !plain.is_empty()
        && plain.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    match name == "*" || is_name {
        true => Ok(name.to_owned()),
        false => Err("expected a name without scheme, port and path, such as chat.example, \
                      *.chat.example or *"
            .to_owned()),
    }
}

const SERVE_HELP: &str = "\
Try:
  millstream serve
  millstream serve mlx-community/Qwen3.5-35B-A3B-4bit --memory 16G --api-key secret --host 0.0.0.0
  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'";
