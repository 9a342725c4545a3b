//! The files of one model: one, or parts named `NAME-00001-of-00003.gguf`.
//!
//! The first part has all metadata, the others what makes them parts. Each has a table, a data section and an alignment
//! of its own; the first may have no tensors at all. Whichever part is named, the first is opened.

use std::sync::Arc;

use super::architecture::Architecture;
use super::conversion::Conversion;
use super::header::{self, Header};
use super::metadata::Metadata;
use super::outline::Outline;
use super::{config, tensors};
use crate::folder::{Folder, OpenFile};
use crate::{Config, Error, FileIndex, Result, Tensor, Warning};

/// A model in GGUF files, as a checkpoint has it.
pub(crate) struct Model {
    pub(crate) files: Vec<Arc<OpenFile>>,
    pub(crate) metadata: Metadata,
    pub(crate) config: Config,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) conversion: Conversion,
    pub(crate) warnings: Vec<Warning>,
}

/// Opens the model that the file called `name` is, or is a part of.
pub(crate) fn open(folder: &Folder, name: &str) -> Result<Model> {
    let first = match PartName::parse(name) {
        Some(part) => part.with_number(1),
        None => name.to_owned(),
    };
    let (file, Header { metadata, mut tensors }) = read_part(folder, &first, 0)?;
    let mut files = vec![file];
    if let Some(part) = is_part(&metadata, PartName::parse(&first))? {
        check_part(&metadata, 0, part.count)?;
        for number in 1..part.count {
            let (file, header) = read_part(folder, &part.with_number(number + 1), number)?;
            check_part(&header.metadata, number, part.count)?;
            files.push(file);
            tensors.extend(header.tensors);
        }
        check_count(&metadata, tensors.len())?;
    }
    sort(&mut tensors, &files)?;

    let architecture = Architecture::of(&metadata, &tensors)?;
    let outline = Outline::new(&metadata, architecture, &tensors)?;
    let config = config::config(&outline)?;
    let placed = tensors::place(&outline)?;
    Ok(Model {
        files,
        config,
        tensors: placed.tensors,
        conversion: placed.conversion,
        warnings: placed.warnings,
        metadata,
    })
}

/// The names among `names` that are a whole model or the first part of one.
pub(crate) fn first_parts(names: &[String]) -> Vec<&str> {
    let is_gguf = |name: &&str| {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending);
        ending.is_some_and(|ending| ending.eq_ignore_ascii_case("gguf")) && !name.starts_with('.')
    };
    let is_first = |name: &&str| PartName::parse(name).is_none_or(|part| part.number == 1);
    names.iter().map(String::as_str).filter(is_gguf).filter(is_first).collect()
}

/// The parts of a name such as `model-00002-of-00003.gguf`.
struct PartName<'a> {
    stem: &'a str,
    number: u32,
    count: u32,
}

impl PartName<'_> {
    fn parse(name: &str) -> Option<PartName<'_>> {
        let rest = name.strip_suffix(".gguf")?;
        let (rest, count) = rest.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let five_digits = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        let (number, count) = (five_digits(number)?, five_digits(count)?);
        (1..=count).contains(&number).then_some(PartName { stem, number, count })
    }

    fn with_number(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

/// Opens a file and reads its header.
fn read_part(folder: &Folder, name: &str, number: u32) -> Result<(Arc<OpenFile>, Header)> {
    let Some(file) = folder.open(name)? else {
        return Err(Error::MissingFile { path: folder.path_of(name) });
    };
    let header = header::read(&file, FileIndex(number))?;
    Ok((Arc::new(file), header))
}

/// The name of the first file as one of several, by metadata and name; `None` where there is one alone.
fn is_part<'a>(metadata: &Metadata, name: Option<PartName<'a>>) -> Result<Option<PartName<'a>>> {
    let count = metadata.u64("split.count")?.unwrap_or(1).max(1);
    let named = match name {
        None if count == 1 => return Ok(None),
        Some(name) if u64::from(name.count) == count => return Ok(Some(name).filter(|_| count > 1)),
        Some(name) => format!("its name says {}", name.count),
        None => "its name is not that of a part, such as NAME-00001-of-00002.gguf".to_owned(),
    };
    let detail = format!("split.count says {count} files, and {named}");
    Err(Error::GgufParts { path: metadata.path().to_owned(), detail })
}

/// Holds a part to its place.
fn check_part(metadata: &Metadata, number: u32, count: u32) -> Result<()> {
    for (key, expected) in [("split.no", number), ("split.count", count)] {
        let got = metadata.u64(key)?;
        if got != Some(u64::from(expected)) {
            let got = got.map_or_else(|| "nothing".to_owned(), |got| got.to_string());
            let detail = format!("{key} is {got}, expected {expected}");
            return Err(Error::GgufParts { path: metadata.path().to_owned(), detail });
        }
    }
    Ok(())
}

/// Holds all parts to the number of tensors that the first gives.
fn check_count(metadata: &Metadata, got: usize) -> Result<()> {
    match metadata.u64("split.tensors.count")? {
        Some(expected) if expected != got as u64 => {
            let detail = format!("split.tensors.count is {expected}, the files have {got}");
            Err(Error::GgufParts { path: metadata.path().to_owned(), detail })
        }
        _ => Ok(()),
    }
}

/// Sorts by name, and refuses a name that two parts have.
fn sort(tensors: &mut [Tensor], files: &[Arc<OpenFile>]) -> Result<()> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some(pair) => {
            let path = |tensor: &Tensor| files[tensor.file.0 as usize].path.clone();
            let (first, second) = (path(&pair[0]), path(&pair[1]));
            Err(Error::InTwoFiles { tensor: pair[0].name.clone(), first, second })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, expect: Option<(&str, u32, u32)>) {
        let found = PartName::parse(name);
        assert_eq!(found.map(|part| (part.stem, part.number, part.count)), expect, "{name}");
    }

    #[test]
    fn names_of_parts() {
        check("a-b-00002-of-00003.gguf", Some(("a-b", 2, 3)));
        check("-00001-of-00001.gguf", Some(("", 1, 1)));
        check("model.gguf", None);
        check("model-0001-of-0003.gguf", None);
        check("model-00004-of-00003.gguf", None);
        check("model-00000-of-00003.gguf", None);
        check("model-+0001-of-00003.gguf", None);
        let part = PartName::parse("m-00002-of-00012.gguf").map(|part| part.with_number(11));
        assert_eq!(part.as_deref(), Some("m-00011-of-00012.gguf"));
    }

    #[test]
    fn a_model_is_counted_once() {
        let names = ["A.GGUF", "b.gguf", "c-00001-of-00002.gguf", "c-00002-of-00002.gguf", "x.txt"];
        let names = names.map(str::to_owned);
        assert_eq!(first_parts(&names), ["A.GGUF", "b.gguf", "c-00001-of-00002.gguf"]);
    }
}
