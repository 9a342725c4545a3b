//! Which read begins when, and which never does.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use checkpoint::FileIndex;
use experts::device::{ALIGNMENT, Device};
use experts::reader::{DiskReader, Priority};

use crate::support::{Listener, lay_out, threads};

/// Lets reads end one by one and keeps the order in which they began.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// Block numbers of the reads.
    begun: Vec<u64>,
    permits: usize,
    under_way: usize,
    most_under_way: usize,
}

impl Gate {
    fn let_through(&self, count: usize) {
        self.state.lock().unwrap().permits += count;
        self.changed.notify_all();
    }

    fn wait_for_begun(&self, count: usize) -> Vec<u64> {
        let mut state = self.state.lock().unwrap();
        while state.begun.len() < count {
            state = self.changed.wait(state).unwrap();
        }
        state.begun.clone()
    }
}

impl Device for Gate {
    fn read(&self, _file: FileIndex, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.lock().unwrap();
        state.begun.push(offset / ALIGNMENT as u64);
        state.under_way += 1;
        state.most_under_way = state.most_under_way.max(state.under_way);
        self.changed.notify_all();
        while state.permits == 0 {
            state = self.changed.wait(state).unwrap();
        }
        state.permits -= 1;
        state.under_way -= 1;
        out.fill(offset as u8);
        Ok(out.len())
    }

    fn path(&self, _file: FileIndex) -> &Path {
        Path::new("<gate>")
    }

    fn check_unchanged(&self, _file: FileIndex) -> experts::Result<()> {
        Ok(())
    }
}

/// A reader over a gate, and what the test does with the reads of blocks 0 to 9. A read's block is also
/// its ticket.
fn with_gate(
    depth: usize,
    test: impl FnOnce(&Gate, DiskReader, &Listener, &dyn Fn(&DiskReader, &[usize], Priority)),
) {
    let gate = Arc::new(Gate::default());
    let listener = Listener::new();
    let wishes: Vec<_> =
        (0..10).map(|block| (0, block * ALIGNMENT as u64, ALIGNMENT, ALIGNMENT)).collect();
    let (_memory, reads) = lay_out(&wishes);
    let reader = DiskReader::start(gate.clone(), threads(depth), listener.done()).unwrap();
    let submit = |reader: &DiskReader, blocks: &[usize], priority| {
        let chosen: Vec<_> = blocks.iter().map(|&block| reads[block]).collect();
        // SAFETY: the memory outlives the reader, and no test submits a block twice.
        unsafe { reader.submit(&chosen, priority) };
    };
    test(&gate, reader, &listener, &submit);
}

#[test]
fn demand_overtakes_read_ahead_and_each_keeps_its_order() {
    with_gate(1, |gate, reader, listener, submit| {
        submit(&reader, &[0], Priority::Ahead);
        gate.wait_for_begun(1);
        submit(&reader, &[1, 2, 3], Priority::Ahead);
        submit(&reader, &[4, 5], Priority::Demand);
        submit(&reader, &[6], Priority::Ahead);
        submit(&reader, &[7], Priority::Demand);
        gate.let_through(8);
        listener.wait(8);
        assert_eq!(gate.wait_for_begun(8), [0, 4, 5, 7, 1, 2, 3, 6]);
    });
}

#[test]
fn a_promoted_read_goes_behind_the_demand_that_waits() {
    with_gate(1, |gate, reader, listener, submit| {
        submit(&reader, &[0], Priority::Ahead);
        gate.wait_for_begun(1);
        submit(&reader, &[1, 2, 3], Priority::Ahead);
        submit(&reader, &[4], Priority::Demand);
        reader.promote(2);
        reader.promote(0);
        reader.promote(9);
        submit(&reader, &[5], Priority::Demand);
        gate.let_through(6);
        listener.wait(6);
        assert_eq!(gate.wait_for_begun(6), [0, 4, 2, 5, 1, 3]);
    });
}

#[test]
fn only_what_has_not_begun_can_be_withdrawn() {
    with_gate(1, |gate, reader, listener, submit| {
        submit(&reader, &[0], Priority::Demand);
        gate.wait_for_begun(1);
        submit(&reader, &[1, 2], Priority::Ahead);
        submit(&reader, &[3], Priority::Demand);
        assert_eq!([0, 1, 3, 9].map(|ticket| reader.withdraw(ticket)), [0, 1, 1, 0]);
        gate.let_through(9);
        let results = listener.wait(2);
        assert_eq!(results.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let statistics = reader.statistics();
        assert_eq!((statistics.reads, statistics.withdrawn), (2, 2));
        assert_eq!(statistics.bytes, 2 * ALIGNMENT as u64);
        drop(reader);
        assert_eq!(gate.wait_for_begun(2), [0, 2]);
        assert_eq!(listener.count(), 0);
    });
}

#[test]
fn no_more_reads_are_under_way_than_allowed_and_no_fewer() {
    with_gate(3, |gate, reader, listener, submit| {
        submit(&reader, &[0, 1], Priority::Ahead);
        submit(&reader, &[2, 3, 4, 5, 6, 7], Priority::Demand);
        gate.wait_for_begun(3);
        for round in 1..=5 {
            gate.let_through(1);
            gate.wait_for_begun(3 + round);
        }
        gate.let_through(3);
        listener.wait(8);
        assert_eq!(gate.state.lock().unwrap().most_under_way, 3);
    });
}

#[test]
fn dropping_the_reader_waits_for_what_has_begun() {
    with_gate(2, |gate, reader, listener, submit| {
        submit(&reader, &[0, 1, 2, 3, 4], Priority::Demand);
        gate.wait_for_begun(2);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(reader));
            gate.let_through(9);
        });
        // Each that began is reported, and no other.
        let mut begun = gate.wait_for_begun(2);
        begun.sort_unstable();
        assert_eq!(listener.wait(0).into_keys().collect::<Vec<_>>(), begun);
        assert_eq!(gate.state.lock().unwrap().under_way, 0);
    });
}

#[test]
fn a_trace_shows_what_was_read_and_in_what_order() {
    with_gate(1, |gate, reader, listener, submit| {
        gate.let_through(9);
        submit(&reader, &[0], Priority::Demand);
        listener.wait(1);
        reader.record_trace(true);
        submit(&reader, &[1, 2], Priority::Ahead);
        listener.wait(2);
        let trace = reader.take_trace();
        assert_eq!(trace.iter().map(|event| event.ticket).collect::<Vec<_>>(), [1, 2]);
        for event in &trace {
            assert!(event.start <= event.end);
            assert_eq!((event.lane, event.len), (0, ALIGNMENT));
            assert_eq!(event.offset, event.ticket * ALIGNMENT as u64);
            assert_eq!(event.label, [0, event.ticket as u32]);
        }
        reader.record_trace(false);
        submit(&reader, &[3], Priority::Demand);
        listener.wait(1);
        assert!(reader.take_trace().is_empty());
    });
}

#[test]
fn a_listener_that_panics_loses_its_read_and_no_other() {
    let gate = Arc::new(Gate::default());
    gate.let_through(9);
    let listener = Listener::new();
    let tell = listener.done();
    let done = move |ticket, result| {
        assert_ne!(ticket, 0, "made on purpose");
        tell(ticket, result);
    };
    let wishes: Vec<_> =
        (0..4).map(|block| (0, block * ALIGNMENT as u64, ALIGNMENT, ALIGNMENT)).collect();
    let (_memory, reads) = lay_out(&wishes);
    let reader = DiskReader::start(gate, threads(1), Arc::new(done)).unwrap();
    // SAFETY: the memory outlives the reader.
    unsafe { reader.submit(&reads, Priority::Demand) };
    assert_eq!(listener.wait(3).into_keys().collect::<Vec<_>>(), [1, 2, 3]);
    drop(reader);
}
