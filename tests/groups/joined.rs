//! Ranks that join by an exchange of their caller's, and all that can go wrong there.

use super::exchange::{Counted, Fault, Faulty, GONE, Map};
use linerate::options::{Exchange, Secret};
use linerate::{Communicator, Config, Error, ReduceOp, Result};
use std::thread;
use std::time::{Duration, Instant};

/// How often a rank that waits looks at the exchange.
const LOOK_EVERY: Duration = Duration::from_millis(250);

fn settings(timeout: f32) -> Config {
    Config {
        timeout: Duration::from_secs_f32(timeout),
        ..Config::default()
    }
}

/// Runs a thread for each rank; their results, in order.
fn each<T: Send>(ranks: u32, run: impl Fn(u32) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = |rank| {
            let run = &run;
            scope.spawn(move || run(rank))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn join_and_sum(
    (rank, ranks): (u32, u32),
    name: &str,
    exchange: &dyn Exchange,
    config: Config,
) -> Result<()> {
    let world = Communicator::join_by(rank, ranks, name, exchange, config)?;
    assert_eq!((world.rank(), world.ranks()), (rank, ranks));
    let mut data = vec![rank as f32 + 1.0; 1000];
    world.all_reduce(&mut data, ReduceOp::Sum)?;
    let sum = (ranks * (ranks + 1) / 2) as f32;
    assert!(data.iter().all(|&value| value == sum));
    world.finalize()
}

/// The texts of the ranks' errors.
fn texts(results: Vec<Result<()>>) -> Vec<String> {
    let text = |result: Result<()>| result.expect_err("it cannot join").to_string();
    results.into_iter().map(text).collect()
}

fn check_all_say(texts: &[String], words: &[&str]) {
    let say = |text: &String| words.iter().all(|word| text.contains(word));
    assert!(texts.iter().all(say), "{words:?} {texts:#?}");
}

#[test]
fn what_a_rank_puts_and_gets_does_not_depend_on_the_number_of_ranks() {
    for ranks in [1, 2, 5, 32] {
        let map = Map::default();
        let start = Instant::now();
        let counts = each(ranks, |rank| {
            let exchange = Counted::new(&map);
            join_and_sum((rank, ranks), "world", &exchange, settings(60.0)).unwrap();
            (exchange.puts.get(), exchange.gets.get())
        });
        let looks_max = start.elapsed().div_duration_f32(LOOK_EVERY) as u32;
        let others = counts[1..].iter();
        let [head, puts, gets] = if ranks > 1 { [2, 0, 1] } else { [0, 0, 0] };
        assert_eq!(counts[0].0, head);
        assert!(counts[0].1 <= looks_max, "{looks_max} {counts:?}");
        for &(of_other, got) in others {
            assert_eq!(of_other, puts);
            assert!((gets..=gets + looks_max).contains(&got), "{counts:?}");
        }
        let left = map.values();
        let over = ("linerate/world/rank0".into(), "linerate-1 over".into());
        assert_eq!(left, if ranks > 1 { vec![over] } else { vec![] });
    }
}

/// Survivors meet again with the secret that went by the exchange.
#[test]
fn ranks_that_have_joined_by_an_exchange_can_rebuild() {
    for transport in ["tcp", "shm"] {
        let map = Map::default();
        let places = each(3, |rank| {
            let mut config = settings(30.0);
            config.transport = transport.into();
            let world = Communicator::join_by(rank, 3, "world", &map, config).unwrap();
            assert_eq!(world.transport(), transport);
            if rank == 1 {
                return (0, 0);
            }
            world.barrier().unwrap_err();
            let world = world.rebuild().unwrap();
            world.barrier().unwrap();
            (world.rank(), world.ranks())
        });
        assert_eq!(places, [(0, 2), (0, 0), (1, 2)]);
    }
}

#[test]
fn an_exchange_serves_one_group_after_another_and_no_name_twice() {
    let map = Map::default();
    let join = |rank, name: &str| join_and_sum((rank, 3), name, &map, settings(20.0));
    for name in ["first", "second", "third group, with: any/words"] {
        each(3, |rank| join(rank, name).unwrap());
    }
    assert_eq!(map.values().len(), 3);
    let text = join(1, "second").unwrap_err().to_string();
    check_all_say(&[text], &["rank 1", "'second'", "a name of its own"]);
    let error = join(1, "").unwrap_err();
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    check_all_say(&[error.to_string()], &["0 bytes", "1 to 200"]);
    for (rank, ranks, name) in [(3, 3, "x"), (0, 0, "x"), (0, 2, "a\0b")] {
        let error = join_and_sum((rank, ranks), name, &map, settings(1.0)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("1 to"), "{text}");
    }
}

#[test]
fn the_secret_goes_by_the_exchange_only_where_none_is_set() {
    let secret = "a secret of this test, and of no other";
    for is_set in [false, true] {
        let map = Map::default();
        each(5, |rank| {
            let mut config = settings(60.0);
            config.transport = "tcp".into();
            // Keys of TLS are made of the secret.
            config.tcp.has_tls = true;
            if is_set {
                config.job.secret = Secret::Text(secret.into());
            }
            join_and_sum((rank, 5), "world", &map, config).unwrap();
        });
        let put = map.put_values();
        let words: Vec<&str> = put[0].1.split(' ').collect();
        assert_eq!(words.len(), 7, "{put:?}");
        assert_eq!(words[5] == "-", is_set);
        assert!(put.iter().all(|(_, value)| !value.contains(secret)));
        // It does not stay there.
        let left = map.values();
        assert!(left.iter().all(|(_, value)| !value.contains(words[5])) || is_set);
    }
}

#[test]
fn a_sibling_has_the_secret_of_the_communicator_that_it_is_made_from() {
    for transport in ["tcp", "shm"] {
        let map = Map::default();
        each(3, |rank| {
            let mut config = settings(60.0);
            config.transport = transport.into();
            let world = Communicator::join_by(rank, 3, "world", &map, config).unwrap();
            let part = world.sibling(&[2, 0, 1], "part", &map).unwrap();
            part.finalize().unwrap();
        });
        let put = map.put_values();
        let is_here = |(key, _): &&(String, String)| key == "linerate/part/rank0";
        let (_, here) = put.iter().find(is_here).unwrap();
        assert_eq!(here.split(' ').nth(5), Some("-"), "{here}");
    }
}

#[test]
fn a_secret_that_one_rank_has_alone_is_told_to_all() {
    for lonely in [0, 2] {
        let map = Map::default();
        let results = each(3, |rank| {
            let mut config = settings(20.0);
            if rank == lonely {
                config.job.secret = Secret::Text("a secret of one rank".into());
            }
            join_and_sum((rank, 3), "world", &map, config)
        });
        check_all_say(&texts(results), &["LINERATE_SECRET", "on all ranks or on"]);
    }
}

#[test]
fn a_rank_that_cannot_take_part_is_named_to_all_with_its_reason() {
    // Before it reaches the meeting, where it can tell by the exchange alone; and after it.
    let early: fn(&mut Config) = |config| config.chunk_bytes = 1;
    let late: fn(&mut Config) = |config| config.transport = "carrier-pigeon".into();
    let named: fn(&mut Config) = |config| config.job.interfaces = Some("nowhere".into());
    let cases = [
        (early, "chunk_bytes"),
        (late, "carrier-pigeon"),
        (named, "nowhere"),
    ];
    for (spoil, reason) in cases {
        for bad in [0, 2] {
            let map = Map::default();
            let start = Instant::now();
            let results = each(3, |rank| {
                let mut config = settings(30.0);
                if rank == bad {
                    spoil(&mut config);
                }
                join_and_sum((rank, 3), "world", &map, config)
            });
            let mut texts = texts(results);
            check_all_say(&texts, &[reason]);
            texts.remove(bad as usize);
            check_all_say(&texts, &[&format!("rank {bad} cannot take part")]);
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
}

#[test]
fn ranks_that_never_come_are_named_within_the_timeout() {
    for (absent, words) in [
        (2, &["ranks [2] did not come in time"][..]),
        (0, &["linerate/world/rank0", "is rank 0 of 'world' started"]),
    ] {
        let map = Map::default();
        let start = Instant::now();
        let mut results = each(4, |rank| match rank == absent {
            true => Ok(()),
            false => join_and_sum((rank, 4), "world", &map, settings(2.5)),
        });
        results.remove(absent as usize).unwrap();
        check_all_say(&texts(results), words);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn ranks_that_expect_other_numbers_of_ranks_are_told() {
    let map = Map::default();
    let results = each(2, |rank| {
        join_and_sum((rank, 2 + rank), "world", &map, settings(20.0))
    });
    check_all_say(&texts(results), &["expects 2 ranks", "rank 1 3"]);
}

/// Joins three ranks, of which one has an exchange with a fault.
fn with_fault(bad: u32, fault: Fault, timeout: f32) -> Vec<Result<()>> {
    let map = Map::default();
    each(3, |rank| {
        let fault = if rank == bad { fault } else { Fault::None };
        let exchange = Faulty(&map, fault);
        join_and_sum((rank, 3), "world", &exchange, settings(timeout))
    })
}

#[test]
fn an_exchange_that_dies_is_named_with_rank_key_and_cause() {
    let cause = GONE;
    // Rank 0 can tell nobody; the others wait for it in vain.
    let text = texts(with_fault(0, Fault::NoPut("rank0"), 1.5));
    check_all_say(&text, &["linerate/world/rank0"]);
    check_all_say(&text[..1], &["rank 0 could not put", cause]);
    // Rank 2 cannot ask, and tells rank 0.
    let text = texts(with_fault(2, Fault::NoGet("rank0"), 20.0));
    let key = "rank 2 could not get key 'linerate/world/rank0'";
    check_all_say(&text, &[key, cause]);
    check_all_say(&text[..2], &["rank 2 cannot take part"]);
    // It can neither ask nor tell.
    let text = texts(with_fault(2, Fault::Dead, 2.5));
    check_all_say(&text[2..], &[key, cause]);
    check_all_say(&text[..2], &["ranks [2] did not come in time"]);
    // Rank 0 finds it when it looks for failures, while rank 2 does not come.
    let map = Map::default();
    let results = each(2, |rank| {
        let fault = [Fault::NoGet("failed"), Fault::None][rank as usize];
        join_and_sum((rank, 3), "world", &Faulty(&map, fault), settings(20.0))
    });
    let key = "rank 0 could not get key 'linerate/world/failed'";
    check_all_say(&texts(results), &[key, cause]);
}

#[test]
fn an_exchange_that_lies_is_found_out() {
    for lie in ["", "10.0.0.1:4", "linerate-2 here", "\u{1f980} and more"] {
        let results = with_fault(1, Fault::Lie("rank0", lie), 20.0);
        let is_malformed = matches!(results[1], Err(Error::Malformed(_)));
        assert!(is_malformed, "{results:?}");
        let key = "at key 'linerate/world/rank0'";
        check_all_say(&texts(results), &["rank 1 found", key, "linerate-1 here"]);
    }
    let map = Map::default();
    let results = each(2, |rank| {
        let fault = [Fault::Lie("failed", "yes"), Fault::None][rank as usize];
        join_and_sum((rank, 3), "world", &Faulty(&map, fault), settings(20.0))
    });
    check_all_say(&texts(results), &["rank 0 found", "linerate/world/failed"]);
    // Of the right form, where nobody answers: a port of loopback that no process has.
    let nobody = "linerate-1 here 3 0000000000000000 0000000000000007 0123456789abcdef 127.0.0.1:1";
    let results = with_fault(1, Fault::Lie("rank0", nobody), 2.5);
    check_all_say(&texts(results)[1..2], &["rank 1 could not reach rank 0"]);
    let failed = with_fault(1, Fault::Lie("rank0", "linerate-1 failed no reason"), 20.0);
    check_all_say(&texts(failed), &["no reason"]);
}

#[test]
fn an_exchange_that_hangs_is_named_and_keeps_nobody_but_its_own_rank() {
    // Rank 0 comes back with an error, and the others have given up.
    let text = texts(with_fault(0, Fault::Late("rank0"), 1.5));
    let key = "linerate/world/rank0";
    check_all_say(&text[..1], &["rank 0 could not put", key, "it took 2"]);
    let text = texts(with_fault(2, Fault::Late("rank0"), 1.5));
    check_all_say(&text, &["ranks [2] did not come in time"]);
}

#[test]
fn an_exchange_that_is_slow_and_does_not_wait_is_enough() {
    let map = Map::default();
    each(5, |rank| {
        let exchange = Faulty(&map, Fault::Slow);
        join_and_sum((rank, 5), "world", &exchange, settings(30.0)).unwrap();
    });
}

#[test]
fn a_panic_inside_an_exchange_keeps_nobody_longer_than_the_timeout() {
    for bad in [0, 1] {
        let map = Map::default();
        let start = Instant::now();
        let ends = each(3, |rank| {
            let key = ["failed", "rank0", ""][rank as usize];
            let fault = match rank == bad {
                true => Fault::Panic(key),
                false => Fault::None,
            };
            // Rank 0 looks for failures while rank 2 is late.
            if rank == 2 {
                thread::sleep(Duration::from_millis(600));
            }
            let exchange = Faulty(&map, fault);
            let join = || join_and_sum((rank, 3), "world", &exchange, settings(3.0));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(join))
        });
        for (rank, end) in ends.iter().enumerate() {
            let is_right = match rank == bad as usize {
                true => end.is_err(),
                false => matches!(end, Ok(Err(Error::Bootstrap(_)))),
            };
            assert!(is_right, "rank {rank}: {end:?}");
        }
        assert!(start.elapsed() < Duration::from_secs(12));
    }
}
