//! stub
use super::SourceKind;
pub(crate) struct Offer {
    pub source: SourceKind,
    pub most: usize,
    pub behind: usize,
    pub bucket: Option<u8>,
}
pub(crate) struct Pick {
    pub offer: usize,
    pub count: usize,
}
pub(crate) struct Drafted<'a> {
    pub source: SourceKind,
    pub buckets: &'a [u8],
}
pub(crate) struct DraftCost {
    pub source: SourceKind,
    pub sequences: usize,
    pub tokens: usize,
    pub read: usize,
    pub seconds: f64,
}
pub(crate) struct Pass<'a> {
    pub rows: usize,
    pub sequences: usize,
    pub missed_bytes: u64,
    pub missed_by_depth: &'a [u64],
    pub seconds: f64,
}
pub(crate) struct Verdict<'a> {
    pub source: SourceKind,
    pub buckets: &'a [u8],
    pub accepted: usize,
}
pub(crate) struct Settings {
    pub most: usize,
    pub streams: bool,
}
#[derive(Debug, Default, Clone)]
pub struct Report;
pub(crate) struct Controller;
impl Controller {
    pub fn new(_: Settings) -> Controller {
        Controller
    }
    pub fn plan(&mut self, offers: &[Vec<Offer>]) -> Vec<Option<Pick>> {
        offers.iter().map(|o| o.first().map(|o| Pick { offer: 0, count: o.most })).collect()
    }
    pub fn trim(&mut self, d: &[Option<Drafted<'_>>]) -> Vec<usize> {
        d.iter().map(|d| d.as_ref().map_or(0, |d| d.buckets.len())).collect()
    }
    pub fn observe_draft(&mut self, _: &DraftCost) {}
    pub fn observe_pass(&mut self, _: &Pass<'_>) {}
    pub fn observe_verdict(&mut self, _: &Verdict<'_>) {}
    pub fn report(&self) -> Report {
        Report
    }
}
