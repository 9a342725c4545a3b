//! An answer on the terminal: the text on standard output, thinking and bars on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use engine::session::Update;
use text::Piece;

use crate::console::{Bar, Console, Tone};

/// What is read sooner needs no bar. Not tokens decide but time: a hundred of them can take long where
/// experts come from a disk.
const BAR_AFTER: Duration = Duration::from_millis(500);

/// Shows an answer piece by piece.
pub(crate) struct Screen {
    console: Console,
    bar: Option<Bar>,
    thinking: bool,
    /// Whether the answer's text so far ends a line.
    at_line_start: bool,
}

impl Screen {
    pub(crate) fn new(console: Console) -> Screen {
        Screen { console, bar: None, thinking: false, at_line_start: true }
    }

    /// Shows what is new of the answer.
    pub(crate) fn show(&mut self, update: &Update) -> Result<()> {
        match update {
            &Update::Prefill { done, total, .. } => {
                if done < total {
                    let new = || self.console.token_bar("reading", total as u64, BAR_AFTER);
                    self.bar.get_or_insert_with(new).set_position(done as u64);
                } else {
                    self.clear_bar();
                }
                Ok(())
            }
            Update::Piece(Piece::Reasoning(text), _) => self.think(text),
            Update::Piece(Piece::Content(text), _) => self.say(text),
            // No tools were offered, so none is called.
            Update::Piece(..) | Update::Finished(_) => Ok(()),
        }
    }

    fn say(&mut self, text: &str) -> Result<()> {
        self.end_thinking()?;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        self.at_line_start = text.ends_with('\n');
        Ok(())
    }

    /// Thinking is a message: for a terminal, not for a file.
    fn think(&mut self, text: &str) -> Result<()> {
        self.clear_bar();
        let mut error = io::stderr().lock();
        if !error.is_terminal() {
            return Ok(());
        }
        let (begin, end) = self.console.codes(Tone::Dim);
        let label = if self.thinking { "" } else { "thinking: " };
        self.thinking = true;
        write!(error, "{begin}{label}{text}{end}")?;
        error.flush()?;
        Ok(())
    }

    fn end_thinking(&mut self) -> Result<()> {
        self.clear_bar();
        if std::mem::take(&mut self.thinking) {
            write!(io::stderr(), "\n\n")?;
        }
        Ok(())
    }

    /// Ends the answer with a line end.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.end_thinking()?;
        if !self.at_line_start {
            let mut out = io::stdout().lock();
            out.write_all(b"\n")?;
            out.flush()?;
        }
        Ok(())
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear_bar();
    }
}
