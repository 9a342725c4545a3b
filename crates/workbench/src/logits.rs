//! Every position's logits in a file, for comparison with another engine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::write::{Declaration, SafetensorsWriter};
use model::Logits;
use runtime::Runner;

use crate::{Error, Result, argmax};

use format::Dtype;

/// Writes `logits`, f32 of [tokens, vocabulary], and with `greedy` also `tokens`, i64: so many tokens generated
/// greedily. `progress` receives how many tokens are computed. A file that is cut short never has the name `out`.
pub fn write(
    runner: &mut Runner,
    tokens: &[u32],
    greedy: Option<usize>,
    out: &Path,
    mut progress: impl FnMut(usize),
) -> Result<()> {
    let vocab = runner.spec().vocab;
    let mut declarations = vec![Declaration::new("logits", Dtype::F32, &[tokens.len(), vocab])];
    if let Some(greedy) = greedy {
        declarations.push(Declaration::new("tokens", Dtype::I64, &[greedy]));
    }
    let failed = |source| Error::WriteTensors { path: out.to_owned(), source };
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let unfinished = Unfinished::new(out);
    let mut file =
        SafetensorsWriter::create(unfinished.path(), &declarations, &metadata).map_err(failed)?;
    let mut sequence = runner.sequence()?;
    let mut next = 0;
    let mut written = Ok(());
    let mut bytes = Vec::with_capacity(vocab * 4);
    runner.feed(&mut sequence, tokens, Logits::All, |row, values| {
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        if written.is_ok() {
            written = file.write("logits", &bytes);
        }
        next = argmax(values);
        progress(row + 1);
    })?;
    written.map_err(failed)?;
    for _ in 0..greedy.unwrap_or(0) {
        file.write("tokens", &i64::from(next).to_le_bytes()).map_err(failed)?;
        let token = next;
        runner.feed(&mut sequence, &[token], Logits::Last, |_, values| next = argmax(values))?;
    }
    file.finish().map_err(failed)?;
    unfinished.finish().map_err(|source| Error::Write { path: out.to_owned(), source })
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
