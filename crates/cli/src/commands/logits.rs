//! `millstream logits`: every position's logits in a file.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::LogitsArgs;
use crate::invocation::{self, Invocation};

pub(crate) fn run(args: &LogitsArgs, invocation: &Invocation) -> Result<()> {
    let tokens = match (&args.tokens, &args.tokens_file) {
        (Some(tokens), _) => parse_tokens(tokens)?,
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            parse_tokens(&text)?
        }
        (None, None) => bail!("there are no tokens: give --tokens or --tokens-file"),
    };
    let model = invocation.open(&args.model)?;
    let vocab = model.spec.vocab;
    // Before anything is loaded or written.
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
        return Err(runtime::Error::Token { token, vocab }.into());
    }
    let needed = tokens.len() + args.greedy.unwrap_or(0);
    let plan = invocation.plan_for(&model, needed, 0)?;
    let mut runner = invocation.load_planned(&model, plan)?;

    let bar = invocation.console.token_bar("computing", tokens.len() as u64, Duration::ZERO);
    let progress = |done| bar.set_position(done as u64);
    workbench::logits::write(&mut runner, &tokens, args.greedy, &args.out, progress)?;
    bar.finish_and_clear();
    invocation::finish(&runner)
}

fn parse_tokens(text: &str) -> Result<Vec<u32>> {
    let parts = text.split(|c: char| c.is_whitespace() || c == ',').filter(|part| !part.is_empty());
    let tokens: Vec<u32> = parts
        .map(|part| part.parse().with_context(|| format!("`{part}` is not a token id")))
        .collect::<Result<_>>()?;
    if tokens.is_empty() {
        bail!("there are no tokens");
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_numbers_between_blanks_and_commas() {
        assert_eq!(parse_tokens("1 2,3\n 4").expect("tokens"), [1, 2, 3, 4]);
        let error = parse_tokens("1 x").expect_err("not a number");
        assert_eq!(error.to_string(), "`x` is not a token id");
        assert!(parse_tokens(" ").is_err());
    }
}
