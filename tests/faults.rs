//! What happens to a rank, and what the others make of it: death, interruption, a pause, memory
//! that goes or is given back while it is read, disagreement, absence, limits of descriptors and
//! memory, other jobs and other users. Real processes, most of them over shared memory.
//!
//! A test starts this very program again, once per rank, with `LINERATE_TEST_ROLE` set; the child
//! runs [`child_entry`] and nothing else. Read first: `faults/job.rs`.

#[path = "faults/deaths.rs"]
mod deaths;
#[path = "faults/disagreement.rs"]
mod disagreement;
#[path = "faults/fetching.rs"]
mod fetching;
#[path = "faults/job.rs"]
mod job;
#[path = "faults/limits.rs"]
mod limits;
#[path = "faults/many.rs"]
mod many;
#[path = "faults/pause.rs"]
mod pause;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "faults/servers.rs"]
mod servers;
#[path = "faults/withdrawal.rs"]
mod withdrawal;

#[test]
fn child_entry() {
    let Ok(role) = std::env::var("LINERATE_TEST_ROLE") else {
        return;
    };
    match role.as_str() {
        "busy" => deaths::busy(),
        "compute" => deaths::compute(),
        "fetching" => fetching::exchange(),
        "unmapped" => fetching::unmapped(),
        "withdrawn" => fetching::withdrawn(),
        "many" => many::many(),
        "paused" => pause::paused(),
        "server" => servers::server(),
        "receiving" => withdrawal::receiving(),
        "reducing" => withdrawal::reducing(),
        "thawing" => withdrawal::thawing(),
        "disagree" => disagreement::disagree(),
        "absent" => disagreement::absent(),
        "crossed" => disagreement::crossed(),
        "plain" => disagreement::plain_memory(),
        "sum" => limits::sum(),
        "greedy" => limits::greedy(),
        "again" => limits::again(),
        "churn" => limits::churn(),
        "exhausted" => limits::exhausted(),
        other => panic!("no role {other}"),
    }
}
