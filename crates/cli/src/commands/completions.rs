//! `millstream completions SHELL`.

use std::io::Write;

use anyhow::Result;

use crate::args::{CompletionsArgs, command};

pub(crate) fn run(args: &CompletionsArgs) -> Result<()> {
    // In memory first: the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "millstream", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}
