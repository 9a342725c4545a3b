//! Connections that have a request slot, wait for one, and give theirs up.

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn phase(opened: &Opened) -> Option<Phase> {
    opened.0.seats.table().open.get(&opened.0.id).map(|entry| entry.phase)
}

/// As if a phase had begun so long ago.
fn age(opened: &Opened, by: Duration) {
    let mut table = opened.0.seats.table();
    let entry = table.open.get_mut(&opened.0.id).unwrap();
    entry.since = entry.since.checked_sub(by).unwrap();
}

/// Connections from an address whose requests have slots.
fn seated(seats: &Arc<Seats>, address: IpAddr, count: usize) -> Vec<Opened> {
    let seated = (0..count).map(|_| seats.open(address).unwrap());
    seated.inspect(|opened| assert_eq!(seats.take(opened.0.id), Taken::Seat)).collect()
}

#[test]
fn shares_add_up() {
    for connections in [0, 16, 17, 64, 1000, 1024, 5000] {
        let limits = Limits::of(connections);
        // There is always an idle connection that can be closed for a new one.
        assert!(limits.seats + limits.waiting < limits.open, "{limits:?}");
        assert!(limits.seats_each * 2 >= limits.seats && limits.waiting_each >= 1, "{limits:?}");
    }
    let limits = Limits::of(1024);
    assert_eq!((limits.seats, limits.seats_each, limits.waiting), (768, 384, 128));
}

#[test]
fn a_connection_without_a_request_has_no_slot() {
    let seats = Seats::new(16);
    let idle: Vec<Opened> = (0..16).map(|_| seats.open(HERE).unwrap()).collect();
    assert_eq!(seats.take(idle[0].0.id), Taken::Seat);
    // A new one takes the place of the one that is idle for longest.
    let new = seats.open(HERE).unwrap();
    assert_eq!((phase(&idle[0]), phase(&idle[1])), (Some(Phase::Receiving), None));
    assert_eq!((phase(&idle[2]), phase(&new)), (Some(Phase::Idle), Some(Phase::Idle)));
}

#[test]
fn the_address_with_most_connections_gives_way() {
    let seats = Seats::new(16);
    let alone = seats.open(THERE).unwrap();
    let many: Vec<Opened> = (0..15).map(|_| seats.open(HERE).unwrap()).collect();
    let _new = seats.open(ELSEWHERE).unwrap();
    assert_eq!((phase(&alone), phase(&many[0])), (Some(Phase::Idle), None));
}

#[test]
fn no_address_has_more_than_half_of_the_slots() {
    let seats = Seats::new(16);
    let _here = seated(&seats, HERE, 6);
    let one_more = seats.open(HERE).unwrap();
    assert_eq!(seats.take(one_more.0.id), Taken::Wait);
    let there = seated(&seats, THERE, 6);
    let other = seats.open(ELSEWHERE).unwrap();
    assert_eq!(seats.take(other.0.id), Taken::Wait);
    drop(there);
    assert_eq!(seats.take(other.0.id), Taken::Seat);
    assert_eq!(seats.take(one_more.0.id), Taken::Wait);
}

#[test]
fn clients_that_are_slow_give_way_and_answers_that_are_made_do_not() {
    let seats = Seats::new(16);
    let here = seated(&seats, HERE, 6);
    let [receiving, answering, finishing, reading, young, other] = here.as_slice() else {
        unreachable!()
    };
    other.0.received(false);
    answering.0.received(false);
    for place in [&finishing.0, &reading.0, &young.0] {
        place.received(false);
        place.answered();
    }
    for opened in [receiving, answering, finishing, reading, other] {
        age(opened, GRACE * 2);
    }
    age(receiving, GRACE);
    reading.0.moved(64 << 10);
    let waiting: Vec<Opened> = (0..3).map(|_| seats.open(HERE).unwrap()).collect();
    assert_eq!(seats.take(waiting[0].0.id), Taken::Seat);
    assert_eq!((phase(receiving), phase(finishing)), (None, Some(Phase::Finishing)));
    assert_eq!(seats.take(waiting[1].0.id), Taken::Seat);
    assert_eq!(phase(finishing), None);
    assert_eq!(seats.take(waiting[2].0.id), Taken::Wait);
    for opened in [answering, reading, young, other] {
        assert!(phase(opened).is_some_and(Phase::has_seat));
    }
}

#[test]
fn of_too_many_that_wait_the_first_is_turned_away() {
    let seats = Seats::new(32);
    let _here = seated(&seats, HERE, 12);
    let waiting: Vec<Opened> = (0..3).map(|_| seats.open(HERE).unwrap()).collect();
    for opened in &waiting {
        assert_eq!(seats.take(opened.0.id), Taken::Wait);
    }
    assert_eq!(seats.take(waiting[0].0.id), Taken::TurnedAway);
    assert_eq!(seats.take(waiting[2].0.id), Taken::Wait);
}

#[tokio::test]
async fn a_slot_is_free_when_the_answer_is_written() {
    let seats = Seats::new(16);
    let here = seated(&seats, HERE, 6);
    let waiting = seats.open(HERE).unwrap();
    let place = waiting.0.clone();
    let sitting = tokio::spawn(async move { place.sit(Duration::from_secs(60)).await });
    here[0].0.answered();
    assert_eq!(phase(&here[0]), Some(Phase::Finishing));
    assert!(here[0].0.flushed());
    sitting.await.unwrap().unwrap();
    assert_eq!((phase(&here[0]), phase(&waiting)), (Some(Phase::Idle), Some(Phase::Receiving)));
    let error = seats.open(HERE).unwrap().0.sit(Duration::ZERO).await.unwrap_err();
    assert_eq!((error.code, error.retry_after), ("too_many_connections", Some(1)));
}

#[tokio::test]
async fn the_next_request_waits_until_the_last_answer_is_written() {
    let opened = Seats::new(16).open(HERE).unwrap();
    opened.0.ask().await;
    opened.0.answered();
    opened.0.blocked();
    let next = tokio::time::timeout(Duration::from_millis(50), opened.0.ask()).await;
    assert!(next.is_err(), "it did not wait");
    let place = opened.0.clone();
    let next = tokio::spawn(async move { place.ask().await });
    tokio::task::yield_now().await;
    opened.0.flushed();
    next.await.unwrap();
    assert!(opened.0.is_asked());
}

#[test]
fn an_address_is_a_subscriber() {
    #[track_caller]
    fn check(address: &str, expect: &str) {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(peer_of(parse(address)), parse(expect));
    }
    check("192.0.2.7", "192.0.2.7");
    check("127.9.9.9", "127.0.0.1");
    check("::1", "127.0.0.1");
    check("::ffff:192.0.2.7", "192.0.2.7");
    check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::");
}
