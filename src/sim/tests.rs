//! Times that follow by hand from the model, what is conserved, and what is refused.

use super::*;
use crate::types::{Collective, Rank};

/// Hosts of one rank with a NIC of a byte a nanosecond, below switches of two tiers.
fn two_tiers(oversubscription: f64) -> Fabric {
    let tier = |hosts, hop_ns| Tier {
        hosts,
        oversubscription,
        hop_ns,
    };
    Fabric {
        nic_gbit: 8.0,
        nic_message_ns: 100,
        latency_ns: 1_000,
        tiers: vec![tier(2, 50), tier(4, 70)],
        ..Fabric::default()
    }
}

fn call(collective: Collective, algorithm: &str, ranks: u32, bytes: u64) -> FabricCall {
    FabricCall {
        algorithm: Some(algorithm.into()),
        ..FabricCall::new(collective, ranks, bytes)
    }
}

fn used<'t>(times: &'t FabricTimes, what: &str) -> &'t Use {
    let found = times.uses.iter().find(|of| of.what == what);
    found.unwrap_or_else(|| panic!("no {what} in {:?}", times.uses))
}

#[test]
fn a_fabric_is_a_name_or_json() {
    assert_eq!(
        "200g".parse::<Fabric>().unwrap(),
        Fabric::named("200g").unwrap()
    );
    let given: Fabric = r#"{"gpus_per_host": 8, "nics_per_host": 2, "work": {"copy_gbytes": 20}}"#
        .parse()
        .unwrap();
    let expected = Fabric {
        gpus_per_host: 8,
        nics_per_host: 2,
        work: LocalWork {
            copy_gbytes: Some(20.0),
            ..LocalWork::default()
        },
        ..Fabric::default()
    };
    assert_eq!(given, expected);
    for (text, named) in [
        ("300g", "fabric '300g' is not known"),
        (r#"{"gpus": 8}"#, "a fabric in JSON: unknown field `gpus`"),
        ("{", "a fabric in JSON: "),
    ] {
        let error = text.parse::<Fabric>().unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_chain_through_two_tiers_takes_what_its_hops_take() {
    let chain = call(Collective::Broadcast, "chain", 8, 4096);
    // A port has each message for 100 + 4096 ns. Ranks 0 to 7 are one after another below the same
    // switch, one tier up, below the same, two tiers up, and so on.
    let hops = [1_050, 1_170, 1_050, 1_240, 1_050, 1_170, 1_050];
    let by_hand: u64 = hops.iter().map(|latency| latency + 4_196).sum();
    assert_eq!(two_tiers(1.0).run(&chain).unwrap().ns, by_hand);
    // Trunks of half a byte a nanosecond have each for 8192 ns: once on its way, however many
    // trunks of that rate it crosses. Those of the second tier are twice as fast.
    let slower = 3 * (8_192 - 4_196);
    assert_eq!(two_tiers(4.0).run(&chain).unwrap().ns, by_hand + slower);
}

#[test]
fn a_slow_nic_and_a_slow_rank_take_as_much_longer() {
    let chain = call(Collective::Broadcast, "chain", 2, 4096);
    let plain = Fabric {
        tiers: Vec::new(),
        ..two_tiers(1.0)
    };
    assert_eq!(plain.run(&chain).unwrap().ns, 1_000 + 4_196);
    let mut slow = plain.clone();
    slow.slow_nics.push(SlowNic {
        host: 1,
        nic: 0,
        share: 0.25,
    });
    assert_eq!(slow.run(&chain).unwrap().ns, 1_000 + 100 + 4 * 4_096);
    // Posting takes 10 ns on rank 0, and 30 on rank 1: its receive is there before the message.
    let mut posting = plain;
    posting.work.message_ns = 10;
    posting.slow_ranks.push(SlowRank {
        rank: 1,
        times: 3.0,
    });
    assert_eq!(posting.run(&chain).unwrap().ns, 10 + 1_000 + 4_196);
}

#[test]
fn additions_take_the_time_of_the_table() {
    // Two ranks send each other their half, add, and send the sums back: 4000 bytes each time.
    let ring = call(Collective::AllReduce, "ring", 2, 8_000);
    let mut fabric = Fabric {
        tiers: Vec::new(),
        ..two_tiers(1.0)
    };
    let one_way = 1_000 + 100 + 4_000;
    assert_eq!(fabric.run(&ring).unwrap().ns, 2 * one_way);
    fabric.work.additions = AddTime::Gbytes(2.0);
    let times = fabric.run(&ring).unwrap();
    assert_eq!(times.ns, 2 * one_way + 2_000);
    assert_eq!(used(&times, "ranks").bytes, 2 * 4_000);
    let work = times.path.iter().find(|part| part.what == "local work");
    assert_eq!(work.map(|part| part.ns), Some(2_000));
}

#[test]
fn links_carry_what_the_schedule_says() {
    let fabric = Fabric::named("oversubscribed").unwrap();
    let bytes: u64 = 8 << 20;
    // Eight rings, one for each NIC of a host, among 32 hosts; and two rings inside of each host.
    let times = fabric
        .run(&call(Collective::AllReduce, "hierarchical", 256, bytes))
        .unwrap();
    let both = 2;
    let between = 2 * (32 - 1) * bytes;
    assert_eq!(used(&times, "NICs").bytes, both * between);
    let inside = 2 * (8 - 1) * bytes * 32;
    assert_eq!(used(&times, "links inside of hosts").bytes, both * inside);
    // Two switches: of the 32 links between neighbours in a ring two cross, each up and down.
    assert_eq!(
        used(&times, "trunks of tier 0").bytes,
        both * 2 * between / 32
    );
    for of in &times.uses {
        assert!(of.mean <= of.most + 1e-9 && of.most <= 1.0, "{of:?}");
    }
}

#[test]
fn the_parts_of_the_longest_chain_are_the_whole_time() {
    let mut fabric = Fabric::named("p3dn").unwrap();
    fabric.work.message_ns = 300;
    fabric.work.copy_gbytes = Some(100.0);
    let pod = Fabric::named("oversubscribed").unwrap();
    for (fabric, ranks) in [(&fabric, 24), (&pod, 136), (&Fabric::default(), 7)] {
        for algorithm in ["ring", "tree", "rabenseifner", "hierarchical"] {
            for bytes in [4, 10_000, 3 << 20] {
                let of = call(Collective::AllReduce, algorithm, ranks, bytes);
                let times = fabric.run(&of).unwrap();
                let sum: u64 = times.path.iter().map(|part| part.ns).sum();
                assert_eq!(sum, times.ns, "{} {of:?}: {:?}", fabric.name, times.path);
                assert_eq!(fabric.run(&of).unwrap(), times, "equal calls, equal times");
            }
        }
    }
}

#[test]
fn what_limits_a_call_is_named() {
    let mut fabric = Fabric::named("8x400g").unwrap();
    fabric.slow_nics.push(SlowNic {
        host: 5,
        nic: 2,
        share: 0.1,
    });
    let of = call(Collective::AllReduce, "hierarchical", 64, 64 << 20);
    let times = fabric.run(&of).unwrap();
    assert_eq!(used(&times, "NICs").busiest, "NIC 2 of host 5 sends");
    let waits = times.path.iter().find(|part| part.what == "waits to send");
    let (at, _) = waits.and_then(|part| part.most.clone()).unwrap();
    assert_eq!(at, "NIC 2 of host 5", "{:?}", times.path);
}

#[test]
fn one_rank_and_nothing_take_no_time() {
    let fabric = Fabric::default();
    let alone = fabric.run(&FabricCall::new(Collective::AllReduce, 1, 1 << 20));
    assert_eq!(alone.unwrap().ns, 0);
    let barrier = fabric.run(&FabricCall::new(Collective::Barrier, 4, 0));
    assert!(barrier.unwrap().ns > 0);
}

#[test]
fn what_no_fabric_can_be_is_refused_by_name() {
    type Change = fn(&mut Fabric);
    let tier = |hosts, oversubscription| Tier {
        hosts,
        oversubscription,
        hop_ns: 0,
    };
    assert!(tier(2, 1.0).hop_ns == 0);
    let changes: [(Change, &str); 14] = [
        (|f| f.nic_gbit = 0.0, "nic_gbit is 0"),
        (|f| f.nic_gbit = f64::NAN, "nic_gbit is NaN"),
        (|f| f.nic_gbit = f64::INFINITY, "nic_gbit is inf"),
        (|f| f.inside_gbit = -1.0, "inside_gbit is -1"),
        (|f| f.gpus_per_host = 0, "gpus_per_host is 0"),
        (|f| f.nics_per_host = 0, "nics_per_host is 0"),
        (|f| f.nics_per_host = 2, "nics_per_host is 2: 1 to 1"),
        (|f| f.hosts = Some(7), "ranks is 8: it has 7 GPUs at most"),
        (|f| f.background = 1.0, "background is 1"),
        (|f| f.latency_ns = u64::MAX, "network.latency_ns"),
        (
            |f| f.work.additions = AddTime::Gbytes(0.0),
            "work.additions is 0",
        ),
        (|f| f.work.message_ns = u64::MAX, "work.message_ns"),
        (
            |f| {
                f.slow_ranks.push(SlowRank {
                    rank: 8 as Rank,
                    times: 2.0,
                })
            },
            "slow_ranks[0].rank is 8: below 8",
        ),
        (
            |f| {
                f.slow_nics.push(SlowNic {
                    host: 8,
                    nic: 0,
                    share: 0.5,
                })
            },
            "slow_nics[0].host is 8: below 8",
        ),
    ];
    for (change, text) in changes {
        let mut fabric = Fabric::default();
        change(&mut fabric);
        let error = fabric.run(&call(Collective::AllReduce, "ring", 8, 64));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
    for (tiers, text) in [
        (vec![tier(0, 1.0)], "tiers[0].hosts is 0"),
        (
            vec![tier(4, 1.0), tier(6, 1.0)],
            "tiers[1].hosts is 6: a multiple of 4",
        ),
        (vec![tier(4, 0.0)], "tiers[0].oversubscription is 0"),
        (vec![tier(4, f64::NAN)], "tiers[0].oversubscription is NaN"),
    ] {
        let fabric = Fabric {
            tiers,
            ..Fabric::default()
        };
        let error = fabric.options(8, 1).unwrap_err().to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
}

#[test]
fn calls_that_cannot_be_run_are_refused() {
    let fabric = Fabric::default();
    for (of, text) in [
        (
            call(Collective::AllReduce, "line", 2, 8),
            "line is for ranks of one host",
        ),
        (
            call(Collective::AllReduce, "pigeon", 2, 8),
            "no algorithm 'pigeon'",
        ),
        (
            call(Collective::AllToAllV, "pairwise", 2, 8),
            "equal lengths",
        ),
        (call(Collective::SendRecv, "direct", 2, 8), "equal lengths"),
        (call(Collective::AllReduce, "ring", 0, 8), "ranks is 0"),
        (
            call(Collective::AllReduce, "ring", 2, u64::MAX),
            "at most 1048576 chunks",
        ),
        (
            FabricCall {
                chunk_bytes: 0,
                ..call(Collective::AllReduce, "ring", 2, 8)
            },
            "chunks of 0 bytes",
        ),
        (
            FabricCall {
                root: 2,
                ..call(Collective::Broadcast, "tree", 2, 8)
            },
            "root 2 of 2 ranks",
        ),
        (
            call(Collective::AllReduce, "ring", 4_096, 1 << 30),
            "take an algorithm with fewer",
        ),
    ] {
        let error = fabric.run(&of).unwrap_err().to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
}
