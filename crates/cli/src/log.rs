//! The log: one line an event on standard error, `warning: …` and so on, without times or targets.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::console::{Console, Tone};

/// Logs from now on.
pub(crate) fn start(level: Level, console: Console) {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Written with a macro that panics: a log that is full or closed would take a request with it.
        .log_internal_errors(false)
        .with_max_level(level)
        .event_format(Line { console })
        .init();
}

struct Line {
    console: Console,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let (tone, label) = match level {
            Level::ERROR => (Tone::Error, "error:"),
            Level::WARN => (Tone::Warning, "warning:"),
            Level::INFO => (Tone::Good, "info:"),
            Level::DEBUG => (Tone::Dim, "debug:"),
            _ => (Tone::Dim, "trace:"),
        };
        write!(writer, "{} ", self.console.paint(tone, label))?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
