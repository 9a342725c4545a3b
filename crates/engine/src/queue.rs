//! Requests: those that wait, those that run, and those that are preempted.
//!
//! Which requests are admitted, and which are preempted, is decided in `admission`.

use std::collections::{BTreeSet, VecDeque};

use crate::job::{Active, Job, Standing};
use crate::pool::SequencePool;
use crate::{Event, FinishReason, Request, RequestId};

#[derive(Default)]
pub(crate) struct Queue {
    /// Without a sequence, the next one first: preempted requests, then by standing.
    pub(crate) waiting: VecDeque<Job>,
    pub(crate) active: Vec<Active>,
    /// Paused, and without a sequence because others wanted the place.
    pub(crate) aside: Vec<Job>,
    /// The last round of which a request was admitted.
    pub(crate) round: u64,
    /// The first in the queue did not fit, and nothing was released since.
    pub(crate) is_blocked: bool,
    cancelled: BTreeSet<RequestId>,
    next_number: u64,
}

impl Queue {
    /// Puts a request in line, as the answer of this number to its client.
    pub(crate) fn submit(
        &mut self,
        request: Request,
        choice: usize,
        pool: &SequencePool,
    ) -> RequestId {
        let standing = self.standing(choice);
        let job = Job::new(self.number(), standing, request);
        let id = job.id;
        self.active.iter_mut().for_each(|active| active.expect(&job, pool.is_rewindable));
        self.line_up(job);
        id
    }

    /// Ends a request at the next step.
    pub(crate) fn cancel(&mut self, id: RequestId) {
        self.cancelled.insert(id);
    }

    pub(crate) fn pause(&mut self, id: RequestId) {
        if let Some(job) = self.find(id) {
            job.is_paused = true;
            self.is_blocked = false;
        }
    }

    pub(crate) fn resume(&mut self, id: RequestId) {
        if let Some(index) = self.aside.iter().position(|job| job.id == id) {
            let (order, standing) = (self.number(), self.standing(0));
            let job = self.aside.remove(index);
            self.line_up(Job { is_paused: false, order, standing, ..job });
        } else if let Some(job) = self.find(id) {
            job.is_paused = false;
        }
    }

    /// Whether there are no requests.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty() && self.aside.is_empty()
    }

    /// Requests that are paused, with or without a sequence.
    pub(crate) fn paused(&self) -> usize {
        let jobs = self.active.iter().map(|active| &active.job).chain(&self.waiting);
        jobs.chain(&self.aside).filter(|job| job.is_paused).count()
    }

    /// Drops cancelled requests.
    pub(crate) fn drop_cancelled(&mut self, pool: &mut SequencePool, events: &mut Vec<Event>) {
        for id in std::mem::take(&mut self.cancelled) {
            let reason = FinishReason::Cancelled;
            let waiting = self.waiting.iter().position(|job| job.id == id);
            let aside = self.aside.iter().position(|job| job.id == id);
            let job = match (waiting, aside) {
                (Some(index), _) => self.waiting.remove(index),
                (None, Some(index)) => Some(self.aside.remove(index)),
                (None, None) => None,
            };
            if let Some(job) = job {
                self.is_blocked = false;
                events.push(Event::Finished { id, reason, usage: job.usage });
            } else if let Some(index) = self.active.iter().position(|active| active.job.id == id) {
                let job = self.finish(index, pool);
                events.push(Event::Finished { id, reason, usage: job.usage });
            }
        }
    }

    /// Puts a request behind all that stand no further back. Preempted requests stand in a round that has begun.
    pub(crate) fn line_up(&mut self, job: Job) {
        let later =
            self.waiting.iter().rev().take_while(|other| other.standing > job.standing).count();
        self.waiting.insert(self.waiting.len() - later, job);
    }

    /// Takes a request out of those that run. Its sequence may be the beginning of a later prompt.
    pub(crate) fn finish(&mut self, index: usize, pool: &mut SequencePool) -> Job {
        pool.catch_up(&mut self.active[index]);
        let Active { job, sequence, .. } = self.release(index, pool);
        pool.keep(&job, sequence);
        job
    }

    /// Takes a request out of those that run, with its sequence.
    pub(crate) fn release(&mut self, index: usize, pool: &mut SequencePool) -> Active {
        self.is_blocked = false;
        let active = self.active.remove(index);
        pool.forget(&active.job);
        active
    }

    /// A number that no request had before.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// The place in line of the answer of this number to a client that comes now.
    fn standing(&self, choice: usize) -> Standing {
        Standing { round: self.round + 1 + choice as u64, choice }
    }

    /// A request that runs or waits.
    fn find(&mut self, id: RequestId) -> Option<&mut Job> {
        let active = self.active.iter_mut().map(|active| &mut active.job);
        active.chain(&mut self.waiting).find(|job| job.id == id)
    }
}
