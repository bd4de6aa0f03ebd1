//! What transports say is under way: [`Diagnostics::traffic`](super::Diagnostics::traffic).

use super::test_posts::TestPosts;
use super::{Event, Options, Outcome, Traffic, Transport, open};
use crate::error::Result;
use crate::memory::Region;
use crate::time::Time;
use std::sync::Arc;

/// Longer than what any transport sends before it is asked to.
const BYTES: usize = 16 << 20;
/// Far more than anything here takes.
const POLLS_MAX: usize = 10_000_000;

/// Polls both ranks until `is_over`, which is told what has completed so far. Returns whether bytes
/// were seen to move on the way.
fn poll_until(
    ranks: &mut [Box<dyn Transport>; 2],
    mut is_over: impl FnMut(&mut [Box<dyn Transport>; 2], usize) -> bool,
) -> bool {
    let (mut ended, mut has_moved) = (0, false);
    for _ in 0..POLLS_MAX {
        let mut events = Vec::new();
        for rank in ranks.iter_mut() {
            rank.poll(Time(1), &mut events);
            has_moved |= rank.traffic() == Traffic::Moving;
            rank.poll_slow(Time(1), &mut events);
        }
        let is_end = |e: &&Event| matches!(e, Event::Completion(c) if c.outcome == Outcome::Done);
        ended += events.iter().filter(is_end).count();
        if is_over(ranks, ended) {
            return has_moved;
        }
    }
    panic!("{:?}", ranks.each_ref().map(|rank| rank.traffic()));
}

fn opened(name: &str) -> Result<[Box<dyn Transport>; 2]> {
    let open = |rank| {
        open(
            name,
            rank,
            2,
            0x7aff1c + u64::from(rank),
            &Options::default(),
        )
    };
    Ok([open(0)?, open(1)?])
}

fn check(mut ranks: [Box<dyn Transport>; 2]) {
    let capabilities = ranks[0].capabilities().clone();
    let addresses = ranks.each_ref().map(|rank| rank.local_address());
    ranks[0].connect(1, &addresses[1]).unwrap();
    ranks[1].connect(0, &addresses[0]).unwrap();
    let views = [0, 1].map(|rank: usize| {
        let region = match capabilities.shared_regions {
            true => Region::shared("linerate-test", BYTES).unwrap(),
            false => Region::private(BYTES).unwrap(),
        };
        let region = Arc::new(region);
        let key = ranks[rank].register(region.clone()).unwrap();
        // The transport keeps it.
        region.view().in_region(key, 0)
    });

    let [source, place] = views;
    poll_until(&mut ranks, |ranks, _| {
        ranks[0].test_send(1, 5, 0, source, 1).is_ok()
    });
    poll_until(&mut ranks, |ranks, _| ranks[0].traffic() == Traffic::Held);
    ranks[1].test_recv(0, 5, place, 2).unwrap();
    let has_moved = poll_until(&mut ranks, |_, ended| ended == 2);
    // A receiver that maps its peer's memory copies from it within a poll.
    assert_eq!(has_moved, !capabilities.mapped, "{}", capabilities.name);
    poll_until(&mut ranks, |ranks, _| {
        let mut all = ranks.iter();
        all.all(|rank| rank.traffic() == Traffic::Idle)
    });
}

#[test]
fn a_message_is_held_until_its_receive_and_nothing_is_under_way_after_it() {
    check(opened("shm").unwrap());
    check(opened("tcp").unwrap());
    match opened("verbs") {
        Ok(ranks) => check(ranks),
        Err(error) => println!("skipped: verbs: {error}"),
    }
}
