//! A record of which experts were wanted: text, one line a visit, for the simulator and for curious people.
//!
//! The first line is a JSON object with the sizes; every other line is `layer rows expert expert …`, the
//! most used expert first.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::geometry::{Class, ClassSlots, Geometry, LayerSize, Slots};
use crate::{Error, Result};

/// The form of today.
pub const LOG_VERSION: u32 = 1;

/// Bytes no line has: a prompt that wants every expert of a large layer, or the header of many layers.
const LONGEST_LINE: u64 = 16 << 20;

/// More than any model has, and few enough to count without an overflow.
const MOST_EXPERTS: usize = 1 << 24;
const MOST_LAYERS: usize = 1 << 16;
const MOST_EXPERT_BYTES: u64 = 1 << 34;

/// What a log begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`LOG_VERSION`].
    #[serde(rename = "millstream_routing")]
    pub version: u32,
    /// By layer; null for those without experts.
    pub layers: Vec<Option<LayerSize>>,
    /// The slots the recorded run had.
    pub slots: Slots,
    /// Memory of everything but the slots.
    pub fixed_bytes: u64,
}

/// One visit of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedVisit {
    /// The layer.
    pub layer: usize,
    /// Rows it was for.
    pub rows: usize,
    /// The experts wanted, the most used first.
    pub wanted: Vec<u32>,
}

/// A log being written.
#[derive(Debug)]
pub struct RoutingLog {
    path: PathBuf,
    file: BufWriter<File>,
    line: String,
    failed: Option<std::io::Error>,
}

impl RoutingLog {
    /// Starts a file.
    pub fn create(path: &Path, header: &Header) -> Result<RoutingLog> {
        let failed =
            |source| Error::Io { path: path.to_owned(), operation: "write".to_owned(), source };
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let header = serde_json::to_string(header).map_err(|error| failed(error.into()))?;
        writeln!(file, "{header}").map_err(failed)?;
        Ok(RoutingLog { path: path.to_owned(), file, line: String::new(), failed: None })
    }

    /// Adds a visit. A disk that is full is told at the end, not in the middle of an answer.
    pub fn visit(&mut self, layer: usize, rows: usize, wanted: &[u32]) {
        if self.failed.is_some() {
            return;
        }
        self.line.clear();
        let _ = write!(self.line, "{layer} {rows}");
        for id in wanted {
            let _ = write!(self.line, " {id}");
        }
        self.failed = writeln!(self.file, "{}", self.line).err();
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<()> {
        let flushed = self.file.flush();
        match self.failed.map_or(flushed, Err) {
            Ok(()) => Ok(()),
            Err(source) => {
                Err(Error::Io { path: self.path, operation: "write".to_owned(), source })
            }
        }
    }
}

/// Reads a whole log. The error names the line that is wrong.
pub fn read(mut input: impl BufRead) -> Result<(Header, Vec<LoggedVisit>)> {
    let mut line = String::new();
    if !next_line(&mut input, 1, &mut line)? {
        return Err(Error::Log { line: 1, problem: "the file is empty".to_owned() });
    }
    let header: Header = serde_json::from_str(&line)
        .map_err(|error| Error::Log { line: 1, problem: format!("no routing log: {error}") })?;
    if header.version != LOG_VERSION {
        let problem = format!("version {}, expected {LOG_VERSION}", header.version);
        return Err(Error::Log { line: 1, problem });
    }
    check(&header)?;
    let mut visits = Vec::new();
    for number in 2.. {
        if !next_line(&mut input, number, &mut line)? {
            break;
        }
        let visit = parse(&header, &line);
        visits.push(visit.map_err(|problem| Error::Log { line: number, problem })?);
    }
    Ok((header, visits))
}

/// Reads a line without its end; false at the end of the file.
fn next_line(input: &mut impl BufRead, number: usize, line: &mut String) -> Result<bool> {
    let wrong = |problem: String| Error::Log { line: number, problem };
    line.clear();
    let not_text = |error: std::io::Error| match (error.kind(), number) {
        (std::io::ErrorKind::InvalidData, 1) => wrong("no routing log: it is not text".to_owned()),
        _ => wrong(error.to_string()),
    };
    let length = input.take(LONGEST_LINE).read_line(line).map_err(not_text)?;
    if length > 0 && line.pop() != Some('\n') {
        return Err(wrong(match (length as u64 == LONGEST_LINE, number) {
            (true, _) => "longer than any line of a routing log".to_owned(),
            (false, 1) => "no routing log, or nothing but the beginning of one".to_owned(),
            (false, _) => "cut off; the lines before it can be read without it".to_owned(),
        }));
    }
    Ok(length > 0)
}

/// A visit from its line.
fn parse(header: &Header, line: &str) -> std::result::Result<LoggedVisit, String> {
    let mut numbers = line
        .split_ascii_whitespace()
        .map(|word| word.parse::<u32>().map_err(|_| format!("`{word}` is not a number")));
    let mut next =
        |what: &str| numbers.next().unwrap_or_else(|| Err(format!("the {what} is missing")));
    let layer = next("layer")? as usize;
    let rows = next("number of rows")? as usize;
    let wanted = numbers.collect::<std::result::Result<Vec<u32>, String>>()?;
    let Some(Some(size)) = header.layers.get(layer) else {
        return Err(format!("layer {layer} has no experts"));
    };
    if let Some(id) = wanted.iter().find(|&&id| id as usize >= size.experts) {
        return Err(format!("expert {id} of {}", size.experts));
    }
    let per_row = size.experts_per_token;
    if wanted.len() < per_row || wanted.len() > per_row.saturating_mul(rows) {
        let got = wanted.len();
        return Err(format!("{got} experts for {rows} rows that use {per_row} each"));
    }
    let mut sorted = wanted.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("an expert is there twice".to_owned());
    }
    Ok(LoggedVisit { layer, rows, wanted })
}

/// A header is a file from anywhere: its sizes must not make us divide by zero, overflow or run out of
/// memory.
fn check(header: &Header) -> Result<()> {
    let wrong = |problem: &str| Err(Error::Log { line: 1, problem: problem.to_owned() });
    let mut experts = 0_usize;
    for layer in header.layers.iter().flatten() {
        if layer.experts == 0 || layer.slot_bytes == 0 || layer.expert_bytes == 0 {
            return wrong("a layer's experts have no size");
        }
        if layer.expert_bytes > MOST_EXPERT_BYTES || layer.slot_bytes as u64 > MOST_EXPERT_BYTES {
            return wrong("an expert is larger than any model's");
        }
        if layer.experts_per_token == 0 || layer.experts_per_token > layer.experts {
            return wrong("experts per token do not fit the experts");
        }
        experts = experts.saturating_add(layer.experts);
    }
    if experts == 0 {
        return wrong("no layer has experts");
    }
    if experts > MOST_EXPERTS || header.layers.len() > MOST_LAYERS {
        return wrong("more experts than any model has");
    }
    let geometry = Geometry::new(&header.layers);
    let sound = |(class, slots): (&Class, &ClassSlots)| {
        // A layer without slots of its own needs staging.
        let enough = slots.staging > 0 || slots.kept >= class.layers;
        enough && slots.kept <= class.experts && slots.staging <= MOST_EXPERTS
    };
    if header.slots.classes.len() != geometry.classes().len()
        || !geometry.classes().iter().zip(&header.slots.classes).all(sound)
    {
        return wrong("its slots do not fit its experts");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"millstream_routing":1,"layers":[null,{"experts":8,"experts_per_token":2,"expert_bytes":5000,"slot_bytes":8192}],"slots":{"classes":[{"kept":4,"staging":1}],"bytes":40960},"fixed_bytes":1000}"#;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("routing.log");
        let size =
            LayerSize { experts: 8, experts_per_token: 2, expert_bytes: 5000, slot_bytes: 8192 };
        let header = Header {
            version: LOG_VERSION,
            layers: vec![None, Some(size)],
            slots: Slots { classes: vec![ClassSlots { kept: 4, staging: 1 }], bytes: 5 * 8192 },
            fixed_bytes: 1000,
        };
        let mut log = RoutingLog::create(&path, &header).expect("log");
        log.visit(1, 40, &[7, 0, 3]);
        log.visit(1, 1, &[3, 4]);
        log.finish().expect("written");
        let text = std::fs::read(&path).expect("file");
        assert_eq!(String::from_utf8_lossy(&text), format!("{HEADER}\n1 40 7 0 3\n1 1 3 4\n"));
        let (read_header, visits) = read(&text[..]).expect("a log");
        assert_eq!(read_header, header);
        let visit = |rows, wanted: &[u32]| LoggedVisit { layer: 1, rows, wanted: wanted.to_vec() };
        assert_eq!(visits, [visit(40, &[7, 0, 3]), visit(1, &[3, 4])]);
    }

    #[track_caller]
    fn check_refused(text: &[u8], line: usize, problem: &str) {
        let error = read(text).expect_err("no log").to_string();
        let expect = format!("line {line} of the routing log: {problem}");
        assert!(error.starts_with(&expect), "{error:?}, expected {expect:?}");
    }

    #[test]
    fn what_is_no_log_is_refused_by_line() {
        check_refused(b"", 1, "the file is empty");
        check_refused(b"# Big models\n", 1, "no routing log");
        check_refused(b"{\"millstream_routing\":", 1, "no routing log, or nothing but");
        check_refused(&[0xff, 0xfe, b'\n'], 1, "no routing log: it is not text");
        check_refused(&vec![b' '; 1 << 25], 1, "longer than any line");
        let with = |lines: &str| format!("{HEADER}\n{lines}").into_bytes();
        check_refused(&with("1 1 3 4\n1 1 3"), 3, "cut off");
        check_refused(&with("1 1 3 4\n\n"), 3, "the layer is missing");
        check_refused(&with("1\n"), 2, "the number of rows is missing");
        check_refused(&with("1 1 x 4\n"), 2, "`x` is not a number");
        check_refused(&with("0 1 3 4\n"), 2, "layer 0 has no experts");
        check_refused(&with("9 1 3 4\n"), 2, "layer 9 has no experts");
        check_refused(&with("1 1 3 8\n"), 2, "expert 8 of 8");
        check_refused(&with("1 2 3 3\n"), 2, "an expert is there twice");
        check_refused(&with("1 1 3\n"), 2, "1 experts for 1 rows that use 2 each");
        check_refused(&with("1 1 3 4 5\n"), 2, "3 experts for 1 rows that use 2 each");
        check_refused(&with("1 0 3 4\n"), 2, "2 experts for 0 rows");
    }

    #[test]
    fn a_header_must_add_up() {
        #[track_caller]
        fn check(from: &str, to: &str, problem: &str) {
            let text = HEADER.replacen(from, to, 1);
            assert_ne!(text, HEADER);
            check_refused(format!("{text}\n").as_bytes(), 1, problem);
        }
        check("routing\":1", "routing\":2", "version 2, expected 1");
        check("\"experts\":8", "\"experts\":0", "a layer's experts have no size");
        check("\"experts\":8", "\"experts\":99999999", "more experts than any model has");
        check("slot_bytes\":8192", "slot_bytes\":9223372036854775807", "an expert is larger");
        check("per_token\":2", "per_token\":9", "experts per token do not fit");
        check("4,\"staging\":1", "0,\"staging\":0", "its slots do not fit its experts");
        check("\"kept\":4", "\"kept\":9", "its slots do not fit its experts");
        check("[{\"kept\":4,\"staging\":1}]", "[]", "its slots do not fit its experts");
    }
}
