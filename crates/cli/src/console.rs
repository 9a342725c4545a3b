//! The two channels: standard output for data, standard error for messages.
//!
//! Colour and bars appear only on a terminal; `NO_COLOR` and `TERM=dumb` switch colour off, and
//! everything reads the same without it. A reader of standard output that goes away (`| head`) is no
//! failure: see [`is_broken_pipe`].

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Color, Effects, Style};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line of a message. A standard error that is closed or full cannot be reported, and nothing else fails for it.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
pub(crate) use say;

/// What standard error can show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    colour: bool,
    bars: bool,
}

/// What kind a message is, and so how it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Something failed.
    Error,
    /// Something is odd.
    Warning,
    /// Advice.
    Hint,
    /// All is well.
    Good,
    /// Less important than the rest.
    Dim,
}

impl Console {
    /// What this process's standard error can show. `no_progress` switches bars off.
    pub(crate) fn new(no_progress: bool) -> Console {
        let terminal = io::stderr().is_terminal() && !is_dumb();
        Console {
            colour: terminal && !no_colour() && takes_codes(),
            bars: terminal && !no_progress,
        }
    }

    /// Words in the tone's colour.
    pub(crate) fn paint(self, tone: Tone, words: &str) -> String {
        if !self.colour {
            return words.to_owned();
        }
        let style = style(tone);
        format!("{style}{words}{style:#}")
    }

    /// The escape codes that begin and end a tone, for text that arrives in pieces.
    pub(crate) fn codes(self, tone: Tone) -> (String, String) {
        if !self.colour {
            return (String::new(), String::new());
        }
        let style = style(tone);
        (format!("{style}"), format!("{style:#}"))
    }

    /// A bar over bytes.
    pub(crate) fn byte_bar(self, message: &str, total_bytes: u64) -> Bar {
        let template = "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes}";
        self.bar(message, total_bytes, template, Duration::ZERO)
    }

    /// A bar over tokens that is seen if it is still there after some time.
    pub(crate) fn token_bar(self, message: &str, total: u64, after: Duration) -> Bar {
        self.bar(message, total, "{msg} {bar:30} {pos}/{len} tokens {eta}", after)
    }

    fn bar(self, message: &str, total: u64, template: &str, after: Duration) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if !self.bars {
            return Bar { bar, waiting: None };
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(message.to_owned());
        if after.is_zero() {
            reveal(&bar);
            return Bar { bar, waiting: None };
        }
        // What is waited for may be one long step, so another thread has to look at the clock.
        let (waiting, ended) = channel::<()>();
        let later = bar.clone();
        let thread = std::thread::Builder::new().name("bar".to_owned());
        let spawned = thread.spawn(move || {
            if ended.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                reveal(&later);
            }
        });
        Bar { bar, waiting: spawned.is_ok().then_some(waiting) }
    }
}

/// Shows a bar from now on.
fn reveal(bar: &ProgressBar) {
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(15));
    bar.enable_steady_tick(Duration::from_millis(100));
}

/// How far something has come, where it is shown.
pub(crate) struct Bar {
    bar: ProgressBar,
    /// Dropped, it keeps a bar that is not seen yet from being shown.
    waiting: Option<Sender<()>>,
}

impl Bar {
    /// So much is done.
    pub(crate) fn set_position(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// So much more is done.
    pub(crate) fn inc(&self, more: u64) {
        self.bar.inc(more);
    }

    /// Takes the bar away.
    pub(crate) fn finish_and_clear(mut self) {
        self.waiting = None;
        self.bar.finish_and_clear();
    }
}

fn style(tone: Tone) -> Style {
    let colour = |colour| Style::new().fg_color(Some(Color::Ansi(colour)));
    match tone {
        Tone::Error => colour(AnsiColor::Red).effects(Effects::BOLD),
        Tone::Warning => colour(AnsiColor::Yellow).effects(Effects::BOLD),
        Tone::Hint => colour(AnsiColor::Cyan).effects(Effects::BOLD),
        Tone::Good => colour(AnsiColor::Green),
        Tone::Dim => Style::new().effects(Effects::DIMMED),
    }
}

/// <https://no-color.org>: set and not empty.
fn no_colour() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether the terminal understands escape codes. Windows consoles do once that is enabled.
#[cfg(windows)]
fn takes_codes() -> bool {
    anstyle_query::windows::enable_ansi_colors() != Some(false)
}

#[cfg(not(windows))]
fn takes_codes() -> bool {
    true
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Whether the reader of our standard output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(broken)
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|error| error.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    })
}

/// Prints a value as JSON on standard output.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Where the cells of a column begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows as lines with aligned columns, two spaces between them and none at the end.
pub(crate) fn table(columns: &[Align], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(columns).zip(&widths).map(|((cell, align), &width)| {
            // By hand: formats take no width beyond 65,535, and a cell may have any.
            let rest = " ".repeat(width.saturating_sub(cell.chars().count()));
            match align {
                Align::Left => format!("{cell}{rest}"),
                Align::Right => format!("{rest}{cell}"),
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let rows = [["weights", "1.5 GB", "28 layers"], ["kv", "12.0 MB", ""]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        let text = table(&[Align::Left, Align::Right, Align::Left], &rows);
        assert_eq!(text, "weights   1.5 GB  28 layers\nkv       12.0 MB\n");
    }

    #[test]
    fn a_cell_may_be_longer_than_a_format_takes() {
        let long = "a".repeat(70_000);
        let rows = [vec!["b".to_owned(), "1".to_owned()], vec![long.clone(), "2".to_owned()]];
        let text = table(&[Align::Left, Align::Right], &rows);
        assert_eq!(text, format!("b{}  1\n{long}  2\n", " ".repeat(69_999)));
    }

    #[test]
    fn broken_pipes_are_recognised_inside_other_errors() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::new(pipe()).context("writing")));
        assert!(is_broken_pipe(&serde_json::Error::io(pipe()).into()));
        assert!(!is_broken_pipe(&io::Error::from(io::ErrorKind::NotFound).into()));
    }
}
