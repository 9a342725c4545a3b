//! `millstream synth`: from options to a request, and a bar while it is written.

use anyhow::Result;
use workbench::synth::{Error, Format, Request, Router, SynthHeadKind, Values, write};

use crate::args::{SynthArgs, SynthFormat, SynthHead, SynthRouter};
use crate::console::say;
use crate::interrupt::{self, Answering};
use crate::invocation::Invocation;
use crate::report::Interrupted;
use crate::size;

pub(crate) fn run(args: &SynthArgs, invocation: &Invocation) -> Result<()> {
    let format = match args.format {
        SynthFormat::Mlx => Format::Mlx,
        SynthFormat::Gguf => Format::Gguf,
    };
    let mut request =
        Request::new(&args.like, args.layers, values(args), format, args.out.clone())?;
    match args.head {
        None => {}
        Some(SynthHead::Mtp) => request.set_head(SynthHeadKind::Mtp)?,
        Some(SynthHead::Dflash) => request.set_head(SynthHeadKind::Dflash)?,
    }
    request.force = args.force;
    request.threads = invocation.global.threads.unwrap_or(request.threads);
    let weight_bytes = request.weight_bytes();
    let bar = invocation.console.byte_bar("writing", weight_bytes);
    interrupt::listen();
    let running = Answering::begin();
    let written = write(&request, &|done, _total| {
        bar.set_position(done);
        if running.is_stopped() { Err(Error::Interrupted) } else { Ok(()) }
    });
    bar.finish_and_clear();
    match written {
        Err(Error::Interrupted) => return Err(Interrupted.into()),
        other => other?,
    }
    let (out, bytes) = (args.out.display(), size::bytes(weight_bytes));
    say!("{out}: {}, {bytes} of weights", request.description());
    Ok(())
}

fn values(args: &SynthArgs) -> Values {
    let router = match args.router {
        SynthRouter::Uniform => Router::Uniform,
        SynthRouter::Tuned => Router::Tuned,
    };
    Values { seed: args.seed, group: args.group, router }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    /// `bench --synthetic` has the model that `synth` writes.
    #[test]
    fn defaults_are_those_of_a_model_in_no_file() {
        let typed = ["millstream", "synth", "--like", "tiny-llama", "out"];
        let Command::Synth(args) = Cli::parse_from(typed).command else { panic!() };
        assert_eq!(values(&args), Values::default());
    }
}
