//! `millstream serve`: a model behind HTTP.
//!
//! The port answers before the model is loaded, so that a port in use is reported at once and `/health` can
//! say "loading". One line of JSON on standard output informs a parent process when requests are taken.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::Result;
use runtime::PlanRequest;
use serde_json::json;
use server::{Loaded, Options, Server};
use speculation::Speculation;

use crate::args::{ServeArgs, ServiceArgs};
use crate::commands::show;
use crate::console::{Tone, say};
use crate::invocation::{self, Invocation, SwapWatch};
use crate::report::Advised;
use crate::size;

/// How often a server looks whether the system swaps.
const SWAP_WATCH: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &ServeArgs, invocation: &Invocation) -> Result<()> {
    let service = &args.service;
    if service.api_key.iter().any(|key| key.trim().is_empty()) {
        return Err(
            Advised::usage("--api-key is empty", "give a key, or leave the option out").into()
        );
    }
    let model = invocation.open(&args.model)?;
    // First what is quick and may fail.
    let mut text = model.text()?;
    let request = PlanRequest {
        sequences: Some(service.parallel),
        serving: true,
        connection_bytes: connections(service).saturating_mul(server::HEAD_BYTES) as u64,
        ..invocation.plan_request()
    };
    let pair = invocation.plan_pair(&model, &request)?;
    text.set_context(pair.plan.context);
    let server = Server::start(options(service)).map_err(|error| listen_advice(error, service))?;
    let address = server.address();
    let tell = |line: &str| say!("{}", invocation.console.paint(Tone::Dim, line));
    tell(&format!("listening on http://{address}, loading {}", model.name));
    let plan = pair.plan.clone();
    let speculation = Speculation { fixed: args.fixed_draft, ..Speculation::default() };
    let engine = invocation.load_with(&model, pair, speculation)?;
    let loaded = Loaded {
        name: model.name.clone(),
        text,
        plan,
        model_type: model.spec.model_type.clone(),
        parameters: model.spec.parameters().0,
        bytes: model.checkpoint.total_bytes(),
        quantization: show::main_encoding(&model.spec),
        engine,
    };
    let (context, total_bytes) = (loaded.plan.context, loaded.plan.total_bytes);
    let watched = watch_swap();
    let engine = server.run(loaded, || {
        let url = url(address);
        tell(&format!(
            "{} answers at {url} (OpenAI: {url}/v1, Anthropic: {url}, Ollama: {url}): \
             {} at once, context {context}, {} memory planned{}",
            model.name,
            service.parallel,
            size::bytes(total_bytes),
            if service.no_page { "" } else { "; open it in a browser to chat" },
        ));
        let line = json!({
            "event": "ready",
            "url": url,
            "model": model.name,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "context": context,
            "parallel": service.parallel,
        });
        // A parent that does not listen does not want to know.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    })?;
    drop(watched);
    invocation::finish(engine.runner())
}

/// Warns when the system begins to swap, until what comes back is dropped.
fn watch_swap() -> Sender<()> {
    let (sender, receiver) = channel::<()>();
    let watch = move || {
        let mut swap = SwapWatch::start();
        while receiver.recv_timeout(SWAP_WATCH) == Err(RecvTimeoutError::Timeout) {
            swap.check();
        }
    };
    let thread = std::thread::Builder::new().name("swap-watch".to_owned()).spawn(watch);
    if let Err(error) = thread {
        tracing::warn!("swapping is not watched: {error}");
    }
    sender
}

fn options(service: &ServiceArgs) -> Options {
    Options {
        host: service.host.clone(),
        port: service.port,
        api_keys: service.api_key.clone(),
        allowed_hosts: service.allow_host.clone(),
        allowed_origins: service.allow_origin.clone(),
        queue: service.queue,
        body_bytes: usize::try_from(service.body_limit.0).unwrap_or(usize::MAX),
        connections: connections(service),
        patience: Duration::from_secs(service.patience),
        unread: Duration::from_secs(service.patience),
        drain: Duration::from_secs(service.drain),
        page: !service.no_page,
        ..Options::default()
    }
}

/// One address, a reverse proxy's for one, can have all answers that may be written and wait, half as much again, and no more
/// than half of the request slots.
fn connections(service: &ServiceArgs) -> usize {
    service
        .queue
        .saturating_add(service.parallel)
        .saturating_mul(4)
        .max(Options::default().connections)
}

/// What a client types: "every address" cannot be connected to.
fn url(address: SocketAddr) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
        ip => ip.to_string(),
    };
    format!("http://{host}:{}", address.port())
}

fn listen_advice(error: server::StartError, service: &ServiceArgs) -> anyhow::Error {
    let hint = match &error {
        server::StartError::Listen { source, .. } => match source.kind() {
            std::io::ErrorKind::AddrInUse => "--port 0 takes a free port",
            std::io::ErrorKind::PermissionDenied => {
                "ports below 1024 need rights; --port 8080 does not"
            }
            std::io::ErrorKind::AddrNotAvailable => "--host must be an address of this computer",
            _ => return error.into(),
        },
        _ => return error.into(),
    };
    let message = format!("cannot listen on {}:{}: {}", service.host, service.port, cause(&error));
    Advised::new(message, hint).into()
}

fn cause(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}
