//! `millstream logits`: every position's logits in a file, for comparison with another engine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use checkpoint::Dtype;
use checkpoint::write::{Declaration, SafetensorsWriter};
use model::Logits;

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
        return Err(engine::Error::Token { token, vocab }.into());
    }
    let greedy = args.greedy.unwrap_or(0);
    let needed = tokens.len() + greedy;
    let plan = invocation.plan_for(&model, needed, 0)?;
    let mut runner = invocation.load_planned(&model, plan)?;

    let mut declarations = vec![Declaration::new("logits", Dtype::F32, &[tokens.len(), vocab])];
    if args.greedy.is_some() {
        declarations.push(Declaration::new("tokens", Dtype::I64, &[greedy]));
    }
    let unfinished = Unfinished::new(&args.out);
    let mut file = create(unfinished.path(), &declarations)?;
    let mut sequence = runner.sequence()?;
    let bar = invocation.console.token_bar("computing", tokens.len() as u64, Duration::ZERO);
    let mut next = 0;
    let mut written = Ok(());
    let mut bytes = Vec::with_capacity(vocab * 4);
    runner.feed(&mut sequence, &tokens, Logits::All, |row, values| {
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        if written.is_ok() {
            written = file.write("logits", &bytes);
        }
        next = argmax(values);
        bar.set_position(row as u64 + 1);
    })?;
    bar.finish_and_clear();
    let failed = || format!("cannot write {}", args.out.display());
    written.with_context(failed)?;
    for _ in 0..greedy {
        file.write("tokens", &i64::from(next).to_le_bytes()).with_context(failed)?;
        let token = next;
        runner.feed(&mut sequence, &[token], Logits::Last, |_, values| next = argmax(values))?;
    }
    file.finish().with_context(failed)?;
    unfinished.finish().with_context(failed)?;
    invocation::finish(&runner)
}

/// A file under another name until it is whole; what is left of it goes when this does.
struct Unfinished {
    target: PathBuf,
    /// `None` for what is no plain file, such as a pipe: that is written as it is.
    partial: Option<PathBuf>,
}

impl Unfinished {
    fn new(target: &Path) -> Unfinished {
        let is_special = target.metadata().is_ok_and(|found| !found.is_file());
        let name = target.file_name().filter(|_| !is_special);
        let partial = name.map(|name| {
            let mut name = name.to_owned();
            name.push(".partial");
            target.with_file_name(name)
        });
        Unfinished { target: target.to_owned(), partial }
    }

    fn path(&self) -> &Path {
        self.partial.as_deref().unwrap_or(&self.target)
    }

    fn finish(mut self) -> std::io::Result<()> {
        match self.partial.take() {
            Some(partial) => std::fs::rename(partial, &self.target),
            None => Ok(()),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            // What went wrong matters more than what cannot be tidied up.
            let _ = std::fs::remove_file(partial);
        }
    }
}

fn create(
    path: &Path,
    declarations: &[Declaration],
) -> Result<SafetensorsWriter<impl std::io::Write>> {
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    let writer = SafetensorsWriter::create(path, declarations, &metadata);
    writer.with_context(|| format!("cannot write {}", path.display()))
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

/// The largest value; the first of equals.
pub(crate) fn argmax(values: &[f32]) -> u32 {
    let mut best = 0;
    for (index, &value) in values.iter().enumerate() {
        if value > values[best] {
            best = index;
        }
    }
    best as u32
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
