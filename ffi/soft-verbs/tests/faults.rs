//! What `SOFT_VERBS` lets go wrong: queue pairs that fail, completions that come late or after the
//! end of their queue pair, ports that go down, addresses that move, devices that vanish.
//!
//! The words hold for a process, so that each case has one of its own.
#![allow(unsafe_code)]

mod rig;

use linerate_verbs_sys::raw::*;
use linerate_verbs_sys::*;
use rig::{ACCESS, End, PATIENCE, PORT, Process, RECEIVE, ROLE, open, open_all};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ibv_wc_status as status;

/// As many as the queues of an end have room for.
const WORDS: u64 = 16;

/// What a process does that a test has started.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("break") => {
            let [first, second] = both();
            let expected = [
                status::IBV_WC_SUCCESS,
                status::IBV_WC_SUCCESS,
                status::IBV_WC_RETRY_EXC_ERR,
                status::IBV_WC_WR_FLUSH_ERR,
                status::IBV_WC_WR_FLUSH_ERR,
            ];
            assert_eq!(write_words(&first), expected);
            assert_eq!(words(&second), [1, 2, 0, 0, 0]);
            let states = [&first, &second].map(|end| end.pair.state().unwrap());
            assert_eq!(
                states,
                [ibv_qp_state::IBV_QPS_ERR, ibv_qp_state::IBV_QPS_RTS]
            );
        }
        Ok("lose") => {
            let [first, second] = both();
            let ends = write_words(&first);
            assert_eq!(
                ends[1..3],
                [status::IBV_WC_SUCCESS, status::IBV_WC_RETRY_EXC_ERR]
            );
            assert_eq!(ends[3..], [status::IBV_WC_WR_FLUSH_ERR; 2]);
            assert_eq!(words(&second), [1, 2, 3, 4, 5]);
        }
        Ok("late") => {
            let [first, _second] = both();
            let begun = Instant::now();
            assert_eq!(write_words(&first), [status::IBV_WC_SUCCESS; 5]);
            let took = begun.elapsed();
            assert!(took > Duration::from_millis(10), "{took:?}");
        }
        Ok(role @ ("purged" | "kept")) => {
            let [first, _second] = both();
            (1..=5).for_each(|number| write_word(&first, number));
            let End { pair, queue, .. } = first;
            let number = pair.number();
            drop(pair);
            let (begun, mut found, mut room) = (Instant::now(), 0, [Completion::default(); 8]);
            let expected = if role == "kept" { 5 } else { 0 };
            while found < expected || begun.elapsed() < Duration::from_millis(20) {
                let count = queue.poll(&mut room).unwrap();
                assert!(room[..count].iter().all(|done| done.queue_pair() == number));
                found += count;
                assert!(begun.elapsed() < PATIENCE, "{found} completions");
            }
            assert_eq!(found, expected);
        }
        Ok("down") => {
            let [first, _second] = both();
            write_word(&first, 1);
            assert!(first.next().is_success());
            write_word(&first, 2);
            assert_eq!(
                next_event(&first.context).kind,
                ibv_event_type::IBV_EVENT_PORT_ERR
            );
            let back = next_event(&first.context);
            assert_eq!(back.kind, ibv_event_type::IBV_EVENT_PORT_ACTIVE);
            assert_eq!(back.subject, Subject::Port(PORT.into()));
            assert_eq!(state(&first.context), ibv_port_state::IBV_PORT_ACTIVE);
            assert!(first.next().is_success());
        }
        Ok("down-for-long") => {
            let contexts = open_all().unwrap();
            let [first, second] = End::both([&contexts[0], &contexts[1]]);
            for end in [&second, &first] {
                write_word(end, 1);
                assert_eq!(end.next().status(), status::IBV_WC_RETRY_EXC_ERR);
            }
            let states = [&first, &second].map(|end| state(&end.context));
            let (up, down) = (
                ibv_port_state::IBV_PORT_ACTIVE,
                ibv_port_state::IBV_PORT_DOWN,
            );
            assert_eq!(states, [up, down]);
            assert_eq!(first.context.poll_event().unwrap(), None);
        }
        Ok("move") => {
            let [first, second] = both();
            let place = || {
                let gids = first.context.gids(PORT).unwrap();
                let places: Vec<u32> = gids.iter().map(|gid| gid.index).collect();
                (places, gids[1].bytes)
            };
            let (before, address) = place();
            assert_eq!(before, [0, 1]);
            assert_eq!(write_words(&first), [status::IBV_WC_SUCCESS; 5]);
            assert_eq!(
                next_event(&first.context).kind,
                ibv_event_type::IBV_EVENT_GID_CHANGE
            );
            assert_eq!(place(), (vec![0, 2], address));
            assert_eq!(first.context.gid(PORT, 1).unwrap(), [0; 16]);
            let at = second.at();
            let other = End::on(&first.context);
            assert!(other.receive_from(&at, 1).is_err());
            other.receive_from(&at, 2).unwrap();
        }
        Ok(role @ ("in-order" | "relaxed")) => {
            let context = open().unwrap();
            let access = match role {
                "relaxed" => ACCESS | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING,
                _ => ACCESS,
            };
            let [first, second] = End::joined([0, 1].map(|_| End::with(&context, access)));
            let (mut overtaken, mut ended) = (0, 0);
            (1..=WORDS).for_each(|number| write_word(&first, number));
            let begun = Instant::now();
            while ended < WORDS {
                let mut room = [Completion::default()];
                let found = first.queue.poll(&mut room).unwrap() as u64;
                let words = second.memory.0[1..=WORDS as usize].iter();
                let came = words.map(|word| word.load(Ordering::Acquire) != 0);
                let came: Vec<bool> = came.collect();
                let whole = came.iter().take_while(|&&is_there| is_there).count() as u64;
                overtaken += came.iter().filter(|&&is_there| is_there).count() as u64 - whole;
                ended += found;
                assert!(found == 0 || (room[0].is_success() && room[0].id() == ended));
                assert!(whole >= ended, "{whole} came before {ended} had ended");
                assert!(begun.elapsed() < PATIENCE);
            }
            assert_eq!(overtaken > 0, role == "relaxed");
        }
        Ok("datagrams") => {
            let [first, second] = both();
            let refused = write(&first, 1).unwrap_err();
            assert_eq!((refused.posted, refused.errno), (0, libc::EINVAL), "inline");
            let segments = [0, 8].map(|at| first.region.segment(at, 8).unwrap());
            let many = Local::Many(&segments);
            let refused = first.try_post(1, Operation::Write(first.peer, None), many);
            assert_eq!(refused.unwrap_err().errno, libc::EINVAL, "two segments");
            let receives = [ReceiveRequest {
                id: RECEIVE,
                segments: &[],
            }; WORDS as usize - 1];
            second.pair.post_receive(&receives).unwrap();
            let segment = Local::One(segments[0]);
            for number in 1..=WORDS {
                let told = Operation::Write(first.peer, Some(number as u32));
                first.post(number, told, segment);
            }
            let mut ended: Vec<u64> = (0..WORDS).map(|_| first.next().id()).collect();
            let mut told = (0..WORDS).map(|_| second.next().immediate().unwrap().into());
            let mut told: Vec<u64> = told.by_ref().collect();
            for numbers in [&mut ended, &mut told] {
                assert!(!numbers.is_sorted(), "in order");
                numbers.sort_unstable();
                assert!(numbers.iter().copied().eq(1..=WORDS));
            }
        }
        Ok("vanish") => {
            let contexts = open_all().unwrap();
            let library = Arc::clone(contexts[0].library());
            let [first, second] = End::both([&contexts[0], &contexts[1]]);
            write_word(&first, 1);
            let refused = write(&first, 2).unwrap_err();
            assert_eq!((refused.posted, refused.errno), (0, libc::EIO));
            assert_eq!(
                next_event(&first.context).kind,
                ibv_event_type::IBV_EVENT_DEVICE_FATAL
            );
            assert!(Pd::allocate(&first.context).is_err());
            assert!(first.context.port(PORT).is_err());
            assert!(first.pair.to_error().is_err());
            // What was there lies in memory, and nothing comes any more.
            assert!(first.next().is_success());
            assert_eq!(first.queue.poll(&mut [Completion::default()]).unwrap(), 0);
            write_word(&second, 1);
            assert_eq!(second.next().status(), status::IBV_WC_RETRY_EXC_ERR);
            drop(first);
            assert_eq!(library.live(Kind::QueuePair), 1);
            assert_eq!(
                open_all().err().map(|error| error.errno()),
                Some(Some(libc::ENODEV))
            );
        }
        _ => return,
    }
    println!("RESULT done");
}

/// Two ends on one device.
fn both() -> [End; 2] {
    let context = open().unwrap();
    End::both([&context, &context])
}

/// Writes the number to its place at the other end.
fn write(end: &End, number: u64) -> std::result::Result<(), PostError> {
    let place = Place {
        address: end.peer.address + 8 * number,
        ..end.peer
    };
    let bytes = number.to_ne_bytes();
    end.try_post(number, Operation::Write(place, None), Local::Inline(&bytes))
}

fn write_word(end: &End, number: u64) {
    write(end, number).unwrap();
}

/// Writes five words; how they end, in order.
fn write_words(end: &End) -> Vec<status> {
    (1..=5).for_each(|number| write_word(end, number));
    let ended = (1..=5).map(|number| {
        let done = end.next();
        assert_eq!(done.id(), number);
        done.status()
    });
    ended.collect()
}

/// The words that have come.
fn words(end: &End) -> Vec<u64> {
    let words = end.memory.0[1..=5].iter();
    words.map(|word| word.load(Ordering::Relaxed)).collect()
}

fn state(context: &Context) -> ibv_port_state {
    context.port(PORT).unwrap().state
}

/// The next event, for which it sleeps.
fn next_event(context: &Context) -> Event {
    let begun = Instant::now();
    loop {
        if let Some(event) = context.poll_event().unwrap() {
            return event;
        }
        assert!(begun.elapsed() < PATIENCE, "no event came");
        rig::wait_readable(context.event_fd());
    }
}

/// Runs a role in a process of its own.
fn check(role: &str, settings: &str) {
    assert_eq!(Process::start(role, settings).said("RESULT "), "done");
}

#[test]
fn a_queue_pair_fails_at_the_request_that_is_named_and_the_rest_is_flushed() {
    check("break", "break=3");
}

#[test]
fn requests_whose_acknowledgement_is_lost_have_arrived_and_so_have_those_behind_them() {
    check("lose", "lose=3");
}

#[test]
fn completions_come_late_and_in_order() {
    check("late", "late=50ms");
}

#[test]
fn completions_of_a_queue_pair_that_has_ended_are_purged_or_kept() {
    check("purged", "");
    check("purged", "late=1ms");
    check("kept", "purge=none");
    check("kept", "purge=none,late=5ms");
}

#[test]
fn a_port_goes_down_and_comes_back_with_its_events() {
    check("down", "down=2+10ms");
}

#[test]
fn a_port_that_stays_down_fails_the_queue_pairs_of_both_ends() {
    check("down-for-long", "devices=2,down=1+100000ms");
}

#[test]
fn writes_land_late_and_in_order_unless_the_memory_is_relaxed() {
    check("in-order", "land=5ms");
    check("relaxed", "land=5ms");
}

#[test]
fn a_device_of_datagrams_keeps_no_order_and_writes_one_segment() {
    check("datagrams", "profile=efa-like,land=5ms");
}

#[test]
fn an_address_that_moves_is_found_at_its_new_place_only() {
    check("move", "move=1");
}

#[test]
fn a_device_that_vanishes_refuses_everything_and_does_not_answer() {
    check("vanish", "devices=2,vanish=2");
}
