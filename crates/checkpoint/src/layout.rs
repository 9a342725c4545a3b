//! What holds of the tensors of any file: names are there once, and no byte belongs to two.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{Error, Result, Tensor};

/// Refuses two tensors over the same bytes. Leaves the tensors in file order.
pub(crate) fn check_overlap(tensors: &mut [Tensor], path: &Path, data_start: u64) -> Result<()> {
    tensors.sort_unstable_by_key(|tensor| (tensor.offset, tensor.len_bytes));
    let mut previous: Option<&Tensor> = None;
    for tensor in tensors.iter().filter(|tensor| tensor.len_bytes > 0) {
        if let Some(other) = previous
            && tensor.offset < other.offset + other.len_bytes
        {
            // One name over the same bytes twice is better called what it is.
            let (path, offset) = (path.to_owned(), tensor.offset - data_start);
            let (tensor, other) = (tensor.name.clone(), other.name.clone());
            return Err(if tensor == other {
                Error::Duplicate { path, tensor }
            } else {
                Error::Overlap { path, tensor, other, offset }
            });
        }
        previous = Some(tensor);
    }
    Ok(())
}

/// Refuses two tensors of one name.
pub(crate) fn check_names(tensors: &[Tensor], path: &Path) -> Result<()> {
    let mut names = BTreeSet::new();
    match tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        Some(twice) => Err(Error::Duplicate { path: path.to_owned(), tensor: twice.name.clone() }),
        None => Ok(()),
    }
}
