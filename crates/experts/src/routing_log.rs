//! A record of which experts were wanted: text, one line a visit, for the simulator and for curious people.
//!
//! The first line is a JSON object with the sizes; every other line is `layer rows expert expert …`, the
//! most used expert first. An expert that drafted rows alone want is `expert:depth:rows`, its rows bit by
//! bit in hexadecimal, and after the last layer of their step a line `accepted rows` says which were right.
//! Version 1 knew no drafted rows and is read as well.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use compute::Trial;
use serde::{Deserialize, Serialize};

use crate::geometry::{Class, ClassSlots, Geometry, LayerSize, Slots};
use crate::{Error, Result};

/// The form of today.
pub const LOG_VERSION: u32 = 2;

/// What a line begins with that says which drafted rows were right.
const VERDICT: &str = "accepted";

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedVisit {
    /// The layer.
    pub layer: usize,
    /// Rows it was for.
    pub rows: usize,
    /// The experts wanted, the most used first.
    pub wanted: Vec<u32>,
    /// Which rows want each of them, if drafted rows alone want some; else empty.
    pub trials: Vec<Trial>,
    /// Which drafted rows of this visit and of those before it, up to the last verdict, were right; if it
    /// was said before the next visit.
    pub settled: Option<u64>,
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

    /// Adds a visit. A full disk is reported at the end, not in the middle of an answer.
    pub fn visit(&mut self, layer: usize, rows: usize, wanted: &[u32], trials: &[Trial]) {
        if self.failed.is_some() {
            return;
        }
        self.line.clear();
        let _ = write!(self.line, "{layer} {rows}");
        for (index, id) in wanted.iter().enumerate() {
            let _ = match trials.get(index) {
                Some(Trial { rows: rows @ 1.., depth }) => {
                    write!(self.line, " {id}:{depth}:{rows:x}")
                }
                _ => write!(self.line, " {id}"),
            };
        }
        self.failed = writeln!(self.file, "{}", self.line).err();
    }

    /// Adds which drafted rows since the last call were right.
    pub fn settle(&mut self, accepted: u64) {
        if self.failed.is_none() {
            self.failed = writeln!(self.file, "{VERDICT} {accepted:x}").err();
        }
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
    if !(1..=LOG_VERSION).contains(&header.version) {
        let problem = format!("version {}, expected {LOG_VERSION} or before", header.version);
        return Err(Error::Log { line: 1, problem });
    }
    check(&header)?;
    let mut visits: Vec<LoggedVisit> = Vec::new();
    for number in 2.. {
        if !next_line(&mut input, number, &mut line)? {
            break;
        }
        let wrong = |problem| Error::Log { line: number, problem };
        if let Some(rows) = line.strip_prefix(VERDICT) {
            let accepted = parse_rows(rows.trim()).map_err(wrong)?;
            // At the beginning it is about visits that were not recorded.
            if let Some(last) = visits.last_mut() {
                last.settled = Some(accepted);
            }
        } else {
            visits.push(parse(&header, &line).map_err(wrong)?);
        }
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
    let mut words = line.split_ascii_whitespace();
    let mut next = |what: &str| match words.next() {
        Some(word) => parse_number::<u32>(word),
        None => Err(format!("the {what} is missing")),
    };
    let layer = next("layer")? as usize;
    let rows = next("number of rows")? as usize;
    let experts = words.map(|word| parse_expert(word, rows));
    let (wanted, mut trials): (Vec<u32>, Vec<Trial>) =
        experts.collect::<std::result::Result<Vec<_>, String>>()?.into_iter().unzip();
    if !trials.iter().any(|trial| trial.is_drafted()) {
        trials.clear();
    }
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
    Ok(LoggedVisit { layer, rows, wanted, trials, settled: None })
}

/// An expert of a visit for so many rows, and which rows want it.
fn parse_expert(word: &str, rows: usize) -> std::result::Result<(u32, Trial), String> {
    let Some((id, trial)) = word.split_once(':') else {
        return Ok((parse_number(word)?, Trial::default()));
    };
    let (depth, drafted) = trial.split_once(':').unwrap_or((trial, ""));
    let trial = Trial { rows: parse_rows(drafted)?, depth: parse_number(depth)? };
    let last = trial.rows.checked_ilog2();
    if trial.depth == 0 || rows > Trial::MOST_ROWS || last.is_none_or(|row| row as usize >= rows) {
        return Err(format!("`{word}` is not drafted in {rows} rows"));
    }
    Ok((parse_number(id)?, trial))
}

fn parse_number<T: std::str::FromStr>(word: &str) -> std::result::Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is not a number"))
}

/// Rows, bit by bit.
fn parse_rows(word: &str) -> std::result::Result<u64, String> {
    u64::from_str_radix(word, 16).map_err(|_| format!("`{word}` is not a hexadecimal number"))
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

    const HEADER: &str = r#"{"millstream_routing":2,"layers":[null,{"experts":8,"experts_per_token":2,"expert_bytes":5000,"slot_bytes":8192}],"slots":{"classes":[{"kept":4,"staging":1}],"bytes":40960},"fixed_bytes":1000}"#;

    const LINES: &str =
        "accepted 7\n1 40 7 0 3\n1 4 3 4:1:a 1:2:4 0\n1 2 5 6\naccepted a\n1 1 3 4\n";

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
        let trial = |depth, rows| Trial { depth, rows };
        let drafted = [trial(0, 0), trial(1, 0xa), trial(2, 4), trial(0, 0)];
        log.settle(7);
        log.visit(1, 40, &[7, 0, 3], &[]);
        log.visit(1, 4, &[3, 4, 1, 0], &drafted);
        log.visit(1, 2, &[5, 6], &[Trial::default(); 2]);
        log.settle(0xa);
        log.visit(1, 1, &[3, 4], &[]);
        log.finish().expect("written");
        let text = std::fs::read(&path).expect("file");
        assert_eq!(String::from_utf8_lossy(&text), format!("{HEADER}\n{LINES}"));
        let (read_header, visits) = read(&text[..]).expect("a log");
        assert_eq!(read_header, header);
        let visit = |rows, wanted: &[u32]| LoggedVisit {
            layer: 1,
            rows,
            wanted: wanted.to_vec(),
            ..LoggedVisit::default()
        };
        let expect = [
            visit(40, &[7, 0, 3]),
            LoggedVisit { trials: drafted.to_vec(), ..visit(4, &[3, 4, 1, 0]) },
            LoggedVisit { settled: Some(0xa), ..visit(2, &[5, 6]) },
            visit(1, &[3, 4]),
        ];
        assert_eq!(visits, expect);
    }

    #[test]
    fn the_first_version_is_read() {
        let old = HEADER.replacen("routing\":2", "routing\":1", 1) + "\n1 40 7 0 3\n1 1 3 4\n";
        let (header, visits) = read(old.as_bytes()).expect("a log");
        assert_eq!((header.version, visits.len()), (1, 2));
        assert!(visits.iter().all(|visit| visit.trials.is_empty() && visit.settled.is_none()));
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
        check_refused(&with("1 2 3:1 4\n"), 2, "`` is not a hexadecimal number");
        check_refused(&with("1 2 3:x:2 4\n"), 2, "`x` is not a number");
        check_refused(&with("1 2 x:1:2 4\n"), 2, "`x` is not a number");
        for word in ["3:1:0", "3:0:2", "3:1:4"] {
            let problem = format!("`{word}` is not drafted in 2 rows");
            check_refused(&with(&format!("1 2 {word} 4\n")), 2, &problem);
        }
        check_refused(&with("1 65 3:1:2 4\n"), 2, "`3:1:2` is not drafted in 65 rows");
        check_refused(&with("1 2 3 4\naccepted\n"), 3, "`` is not a hexadecimal number");
        check_refused(&with("1 2 3 4\naccepted 4 g\n"), 3, "`4 g` is not a hexadecimal");
    }

    #[test]
    fn a_header_must_add_up() {
        #[track_caller]
        fn check(from: &str, to: &str, problem: &str) {
            let text = HEADER.replacen(from, to, 1);
            assert_ne!(text, HEADER);
            check_refused(format!("{text}\n").as_bytes(), 1, problem);
        }
        check("routing\":2", "routing\":3", "version 3, expected 2 or before");
        check("routing\":2", "routing\":0", "version 0, expected 2 or before");
        check("\"experts\":8", "\"experts\":0", "a layer's experts have no size");
        check("\"experts\":8", "\"experts\":99999999", "more experts than any model has");
        check("slot_bytes\":8192", "slot_bytes\":9223372036854775807", "an expert is larger");
        check("per_token\":2", "per_token\":9", "experts per token do not fit");
        check("4,\"staging\":1", "0,\"staging\":0", "its slots do not fit its experts");
        check("\"kept\":4", "\"kept\":9", "its slots do not fit its experts");
        check("[{\"kept\":4,\"staging\":1}]", "[]", "its slots do not fit its experts");
    }
}
