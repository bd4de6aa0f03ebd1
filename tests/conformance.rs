//! The transport contract as tests: one or more cases per clause of `linerate::transport`, the same
//! on every provider.
//!
//! A case is a script per role (`script.rs`), an actor plays a role without ever waiting
//! (`actor.rs`), and a harness steps the actors: on `sim` in one thread over many seeds
//! (`simulated.rs`), elsewhere with one process per role (`processes.rs`). `mutants.rs` has
//! transports with faults that the cases must find: at least one per clause.

mod access;
#[path = "conformance/actor.rs"]
mod actor;
#[path = "efa/build.rs"]
mod build;
#[path = "conformance/cases.rs"]
mod cases;
#[path = "conformance/cases_more.rs"]
mod cases_more;
#[path = "conformance/cases_slots.rs"]
mod cases_slots;
#[path = "conformance/cases_withdrawal.rs"]
mod cases_withdrawal;
#[path = "conformance/mutants.rs"]
mod mutants;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "conformance/processes.rs"]
mod processes;
#[path = "conformance/script.rs"]
mod script;
#[path = "conformance/simulated.rs"]
mod simulated;

use linerate::unstable::rdma::Defect;
use mutants::Fault;

/// Seeds per case: every kind of weather with and without mapped memory and hosts is among any 60.
const SEEDS: u64 = 60;

/// Runs every case of a clause on everything that is here.
fn check_clause(clause: u32) {
    let prefix = format!("clause_{clause:02}_");
    let cases = cases::all().into_iter();
    let mut failures = Vec::new();
    let mut count = 0;
    for case in cases.filter(|case| case.name.starts_with(&prefix)) {
        count += 1;
        let is_simulated = std::env::var_os(processes::ONLY_VARIABLE).is_none();
        let seeds = 0..if is_simulated { SEEDS } else { 0 };
        let runs = seeds.clone().map(|seed| simulated::run(&case, seed, None));
        failures.extend(runs.filter_map(Result::err).take(1));
        for is_ordered in [true, false] {
            let runs = seeds
                .clone()
                .map(|seed| simulated::run_rdma(&case, seed, is_ordered));
            failures.extend(runs.filter_map(Result::err).take(1));
        }
        let mut providers = processes::providers();
        providers.retain(|provider| processes::is_kept(provider, case.name));
        for provider in providers {
            failures.extend(processes::run(provider, case.name).err());
        }
    }
    assert!(count > 0, "no case for clause {clause}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

macro_rules! clauses {
    ($($name:ident = $clause:literal),* $(,)?) => {
        $(#[test]
        fn $name() {
            check_clause($clause);
        })*

        const CLAUSES: &[u32] = &[$($clause),*];
    };
}

clauses! {
    clause_01_nothing_blocks = 1,
    clause_02_time_is_an_argument = 2,
    clause_03_a_full_queue_refuses_and_changes_nothing = 3,
    clause_04_every_post_completes_exactly_once = 4,
    clause_05_a_failed_peer_flushes_its_posts = 5,
    clause_06_messages_match_by_peer_and_tag_in_order = 6,
    clause_07_an_unexpected_message_holds_nothing_up = 7,
    clause_08_completion_means_reuse_and_visibility = 8,
    clause_09_wrong_lengths_are_told = 9,
    clause_10_large_sources_are_registered = 10,
    clause_11_keys_end_with_their_registration = 11,
    clause_12_headers_arrive = 12,
    clause_13_cancelling_ends_a_receive_once = 13,
    clause_14_a_disconnected_peer_is_silent = 14,
    clause_15_a_rank_may_be_its_own_peer = 15,
    clause_16_length_zero_is_legal = 16,
    clause_17_sleepers_are_woken = 17,
    clause_18_withdrawn_memory_is_the_owners_again = 18,
    clause_19_an_injected_message_has_been_read = 19,
    clause_20_a_word_is_changed_once_for_all = 20,
    clause_21_what_a_leaving_rank_has_sent_counts = 21,
    clause_22_a_message_that_waits_is_told = 22,
    clause_23_a_slot_is_used_again_and_nothing_of_before_is_seen = 23,
}

#[test]
fn every_case_belongs_to_a_clause_and_has_a_name_of_its_own() {
    let mut names: Vec<_> = cases::all().into_iter().map(|case| case.name).collect();
    for name in &names {
        let number = name.get(7..9).and_then(|digits| digits.parse().ok());
        assert!(number.is_some_and(|n| CLAUSES.contains(&n)), "{name}");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), cases::all().len());
}

/// A fault, and the clause whose cases find it in virtual time.
const SIMULATED_FAULTS: &[(Fault, u32)] = &[
    (Fault::Blocks, 1),
    (Fault::WaitsForTime, 2),
    (Fault::FailsByTime, 2),
    (Fault::SendsRefused, 3),
    (Fault::CompletesTwice, 4),
    (Fault::ForgetsFlushed, 5),
    (Fault::FailsTwice, 5),
    (Fault::FlushesFirst, 5),
    (Fault::SwapsOrder, 6),
    (Fault::HoldsUpOtherTags, 7),
    (Fault::HoldsUpUrgent, 7),
    (Fault::CompletesSendsEarly, 8),
    (Fault::CompletesPutsEarly, 8),
    (Fault::CorruptsBytes, 8),
    (Fault::HidesTruncation, 9),
    (Fault::AcceptsAnything, 10),
    (Fault::HidesBadKeys, 11),
    (Fault::ReusesKeys, 11),
    (Fault::LosesHeaders, 12),
    (Fault::IgnoresCancel, 13),
    (Fault::TalksAfterDisconnect, 14),
    (Fault::LosesOwnMessages, 15),
    (Fault::ForgetsEmpty, 16),
    (Fault::WithdrawsInWord, 18),
    (Fault::HidesWithdrawal, 18),
    (Fault::InjectsLater, 19),
    (Fault::ChangesTwice, 20),
    (Fault::HidesOldWords, 20),
    (Fault::LeavesAtOnce, 21),
    (Fault::TellsNothing, 22),
    (Fault::TellsTwice, 22),
    (Fault::DeliversOld, 23),
    (Fault::PutsOld, 23),
    (Fault::CompletesOld, 23),
    (Fault::FailsNew, 23),
    (Fault::RefusesUsed, 23),
    (Fault::IgnoresUsed, 23),
];

#[test]
fn every_faulty_transport_is_found_out_by_its_clause() {
    for &(fault, clause) in SIMULATED_FAULTS {
        let prefix = format!("clause_{clause:02}_");
        let cases = cases::all().into_iter();
        let is_found = cases
            .filter(|case| case.name.starts_with(&prefix))
            .any(|case| (0..8).any(|seed| simulated::run(&case, seed, Some(fault)).is_err()));
        assert!(is_found, "{fault:?} passes the cases of clause {clause}");
    }
}

/// What may be wrong with a device. Keys that outlive their registration matter where a peer hangs
/// in the middle of a write, which no case lets it do: the library's own tests do.
const DEFECTS: [Defect; 4] = [
    Defect::NumbersByArrival,
    Defect::TellsBeforeBytes,
    Defect::EndsEarly,
    Defect::Overruns,
];

#[test]
fn every_defective_device_is_found_out() {
    for defect in DEFECTS {
        let is_found = cases::all().into_iter().any(|case| {
            (0..SEEDS).any(|seed| simulated::run_defective(&case, seed, defect).is_err())
        });
        assert!(is_found, "no case finds that a device {defect:?}");
    }
}

/// In virtual time nobody sleeps and no memory is read from elsewhere, so these faults are looked
/// for among processes.
#[test]
fn faults_between_processes_are_found_out_by_their_clauses() {
    let cases = [
        ("clause_17_a_notification_wakes", "the wake-up was lost"),
        ("clause_17_a_message_wakes", "the wake-up was lost"),
        (
            "clause_18_a_withdrawn_message_comes_as_it_was_or_never",
            "byte",
        ),
    ];
    for ((provider, of, fault), (case, finding)) in processes::FAULTY.into_iter().zip(cases) {
        if of == "shm fetching" && !processes::may_read_others() {
            println!("skipped: {fault:?}: this host lets no process read another one");
            continue;
        }
        let text = processes::run(provider, case).unwrap_err();
        assert!(text.contains(finding), "{fault:?}: {text}");
    }
}

/// On each provider, the cases of slots that are used again find who keeps something of the old
/// connection.
#[test]
fn faults_of_slots_are_found_out_on_every_provider() {
    let case = "clause_23_a_peer_is_connected_again_and_nothing_of_before_comes";
    for provider in processes::providers() {
        for (fault, finding) in processes::FAULTY_SLOTS {
            let provider = format!("{provider} with {fault:?}");
            let text = processes::run(&provider, case).expect_err(&provider);
            assert!(text.contains(finding), "{fault:?}: {text}");
        }
    }
}

/// Every clause has a faulty transport that its cases find.
#[test]
fn every_clause_has_a_fault() {
    let mut clauses: Vec<u32> = SIMULATED_FAULTS.iter().map(|fault| fault.1).collect();
    clauses.push(17);
    assert!(
        CLAUSES.iter().all(|clause| clauses.contains(clause)),
        "{clauses:?}"
    );
}

/// Where the processes of `processes.rs` begin. Does nothing in an ordinary run.
#[test]
fn child_entry() {
    processes::play_role();
}

#[test]
fn the_harness_of_processes_runs_a_role_and_tells_its_failure() {
    processes::run(processes::ALONE, "clause_15_a_rank_is_its_own_peer").unwrap();
    // Ranks in different processes are in different worlds, so these never meet.
    let text = processes::run("nothing", "clause_15_a_rank_is_its_own_peer").unwrap_err();
    assert!(text.contains("no provider is called nothing"), "{text}");
}
