//! Atomic operations while their connections are cut: each is done once.

use super::TcpTransport;
use super::parking_tests::pair;
use crate::kernel;
use crate::memory::Region;
use crate::time::Time;
use crate::transport::test_posts::TestPosts;
use crate::transport::{Atomic, Event, Outcome, PostError, RemoteRange, Transport};
use rustix::net::{Shutdown, shutdown};
use std::sync::Arc;

const CHANGES: u64 = 600;
/// Of completions between two cuts.
const CUT_EVERY: u64 = 50;
/// Far more than anything here takes.
const POLLS_MAX: u32 = 10_000_000;

fn poll(transport: &mut TcpTransport) -> Vec<Event> {
    let mut events = Vec::new();
    transport.poll(Time::default(), &mut events);
    transport.poll_slow(Time::default(), &mut events);
    events
}

#[test]
fn a_word_is_changed_once_by_each_operation_although_rails_are_cut() {
    let (mut from, mut to, _) = pair(2);
    let owned = Arc::new(Region::private(64).unwrap());
    let word = RemoteRange {
        key: to.register(owned.clone()).unwrap(),
        offset: 8,
    };
    let results = Region::private(8 * CHANGES as usize).unwrap();
    let (mut posted, mut ended, mut cuts, mut polls) = (0, 0, 0, 0);
    while ended < CHANGES {
        polls += 1;
        assert!(polls < POLLS_MAX, "{ended} of {CHANGES} ended");
        // A few at a time, so that cuts come between them.
        while posted < CHANGES && posted < ended + 20 {
            let result = results.view().part(8 * posted as usize, 8);
            match from.test_atomic(1, Atomic::FetchAdd(1), word, result, posted) {
                Ok(()) => posted += 1,
                Err(PostError::WouldBlock) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        for event in poll(&mut from) {
            match event {
                Event::Completion(end) => {
                    assert_eq!(end.outcome, Outcome::Done);
                    ended += 1;
                    if ended % CUT_EVERY == 0
                        && let Some(rail) = from.peers[1].rails().first()
                    {
                        shutdown(&rail.socket, Shutdown::Both).unwrap();
                        cuts += 1;
                    }
                }
                Event::Connected(_) | Event::Unmatched(..) => {}
                Event::PeerFailed(_, cause) => panic!("{cause}"),
                Event::PeerLeft(..) => panic!("nobody leaves"),
            }
        }
        poll(&mut to);
    }
    assert!(cuts >= 10, "{cuts} cuts");
    assert!(from.shared.counts.rails_lost > 0);
    assert_eq!(kernel::load::<u64>(owned.view(), 1), CHANGES);
    let found = |at: u64| kernel::load::<u64>(results.view(), at as usize);
    let mut before: Vec<u64> = (0..CHANGES).map(found).collect();
    before.sort_unstable();
    assert!(before.iter().copied().eq(0..CHANGES), "{before:?}");
}
