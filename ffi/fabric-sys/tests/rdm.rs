//! Endpoints of the providers that every machine has: two of one process write and read each
//! other's memory. Where libfabric or a provider is not there, a test says so and passes.
#![allow(missing_docs, unsafe_code)]

mod rig;

use linerate_fabric_sys::raw::*;
use linerate_fabric_sys::*;
use rig::{ALL_ACCESS, BYTES, Bytes, Rig, alone, for_each, hints, library, pattern};
use std::sync::Arc;

#[test]
fn a_provider_says_what_it_offers() {
    for_each(|info| {
        assert_eq!(info.endpoint_type(), fi_ep_type::FI_EP_RDM);
        assert!(info.caps() & rig::CAPS == rig::CAPS, "{info:?}");
        assert!(
            info.mode() & !rig::MODE == 0 && info.mr_mode() & !rig::MR_MODE == 0,
            "{info:?}"
        );
        assert!(info.message_bytes_max() >= BYTES && info.mr_key_bytes() <= 8);
        assert!(info.cq_data_bytes() >= 4 && info.transmits_max() > 0 && info.receives_max() > 0);
        assert!(info.pieces_max() > 0 && info.remote_pieces_max() > 0);
        assert_eq!(info.threading(), fi_threading::FI_THREAD_SAFE);
        assert!(info.data_progress() != fi_progress::FI_PROGRESS_UNSPEC);
    });
}

#[test]
fn no_provider_is_an_error_that_says_what_was_asked() {
    let Some(library) = library() else { return };
    let error = Info::query(library, &hints("nosuch")).unwrap_err();
    assert_eq!(error.code(), Some(libc::ENODATA));
    let text = error.to_string();
    assert!(
        text.contains("\"nosuch\"") && text.contains("fi_info -v"),
        "{text}"
    );
}

#[test]
fn writes_move_bytes_and_their_numbers() {
    for_each(|info| {
        let rig = Rig::new(info);
        for (id, bytes) in (1..).zip([1, 8, 100, 4096, 70_000, BYTES]) {
            let number = 0xf00d_0000 + id as u32;
            rig.ends[0].memory.fill(0..bytes, id as u8);
            rig.post(|| {
                rig.ends[0]
                    .endpoint
                    .post_write(&rig.write(id, (0, 0, bytes), Some(number)))
            });
            let arrived = rig.wait_data(1);
            assert_eq!(arrived.data(), Some(number), "{arrived:?}");
            assert!(arrived.flags() & FI_REMOTE_WRITE != 0, "{arrived:?}");
            let takes_receive = info.mode() & FI_RX_CQ_DATA != 0;
            assert_eq!(arrived.id().is_some(), takes_receive, "{arrived:?}");
            let expected: Vec<u8> = (0..bytes).map(|index| pattern(index, id as u8)).collect();
            assert!(
                rig.ends[1].memory.copy(0..bytes) == expected,
                "{bytes} bytes"
            );
            let done = rig.wait(0, id);
            assert!(
                done.flags() & FI_WRITE != 0 && done.data().is_none(),
                "{done:?}"
            );
        }
    });
}

#[test]
fn reads_fetch_what_is_there() {
    for_each(|info| {
        let rig = Rig::new(info);
        rig.ends[1].memory.fill(0..BYTES, 3);
        for (id, (to, from, bytes)) in (1..).zip([(5, 7, 1), (0, 9, 3000), (1, 0, BYTES - 1)]) {
            rig.post(|| {
                rig.ends[0]
                    .endpoint
                    .post_read(&rig.read(id, (to, from, bytes)))
            });
            let done = rig.wait(0, id);
            assert!(done.flags() & FI_READ != 0, "{done:?}");
            let expected: Vec<u8> = (from..from + bytes)
                .map(|index| pattern(index, 3))
                .collect();
            assert!(
                rig.ends[0].memory.copy(to..to + bytes) == expected,
                "{bytes} bytes"
            );
        }
    });
}

#[test]
fn operations_that_others_follow_are_carried_out_too() {
    for_each(|info| {
        let rig = Rig::new(info);
        rig.ends[0].memory.fill(0..300, 9);
        for id in 0..3 {
            let at = 100 * id as usize;
            let write = Write {
                is_more: id < 2,
                ..rig.write(id, (at, at, 100), Some(id as u32))
            };
            rig.post(|| rig.ends[0].endpoint.post_write(&write));
        }
        let mut numbers = [0; 3].map(|_| rig.wait_data(1).data().unwrap());
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2]);
        for id in 0..3 {
            rig.wait(0, id);
        }
        assert_eq!(
            rig.ends[1].memory.copy(0..300),
            rig.ends[0].memory.copy(0..300)
        );
        let read = Read {
            is_more: true,
            ..rig.read(7, (1000, 0, 300))
        };
        rig.post(|| rig.ends[0].endpoint.post_read(&read));
        rig.post(|| rig.ends[0].endpoint.post_read(&rig.read(8, (2000, 0, 300))));
        rig.wait(0, 7);
        rig.wait(0, 8);
        assert_eq!(
            rig.ends[0].memory.copy(1000..1300),
            rig.ends[1].memory.copy(0..300)
        );
    });
}

#[test]
fn a_wrong_key_fails_a_read_with_a_reason() {
    for_each(|info| {
        if ["udp;ofi_rxd", "shm"].contains(&&*info.provider_name()) {
            return eprintln!("skipped: it never completes a read that a peer refuses");
        }
        let rig = Rig::new(info);
        let mut read = rig.read(5, (0, 0, 4096));
        read.place.key ^= 0x5555;
        rig.ends[0].memory.fill(0..4096, 1);
        rig.post(|| rig.ends[0].endpoint.post_read(&read));
        let failure = rig.outcome(0, 5).unwrap_err();
        println!("{failure}");
        assert_eq!(
            (failure.id, failure.operation),
            (Some(5), Some(Operation::Read))
        );
        assert!(failure.code > 0);
        let text = failure.to_string();
        assert!(text.contains("Read 5 of "), "{text}");
        assert!(text.contains(&info.provider_name()), "{text}");
        let expected: Vec<u8> = (0..4096).map(|index| pattern(index, 1)).collect();
        assert!(rig.ends[0].memory.copy(0..4096) == expected);
    });
}

#[test]
fn a_wrong_key_writes_nothing() {
    for_each(|info| {
        if info.provider_name() == "udp;ofi_rxd" {
            return eprintln!("skipped: udp;ofi_rxd never completes what a peer refuses");
        }
        let rig = Rig::new(info);
        let mut write = rig.write(1, (0, 0, 8), None);
        write.place.key ^= 0x5555;
        rig.ends[0].memory.fill(0..8, 1);
        rig.post(|| rig.ends[0].endpoint.post_write(&write));
        match rig.outcome(0, 1) {
            Err(failure) => assert_eq!(failure.operation, Some(Operation::Write), "{failure}"),
            // Without FI_DELIVERY_COMPLETE a write is complete when its bytes are sent.
            Ok(done) => println!("{} completes it: {done:?}", info.provider_name()),
        }
        assert_eq!(rig.ends[1].memory.copy(0..8), [0; 8]);
    });
}

#[test]
fn a_full_endpoint_is_busy_until_completions_are_polled() {
    for_each(|info| {
        let rig = Rig::new(info);
        rig.ends[0].memory.fill(0..8, 1);
        // Until it is connected an endpoint may be busy without anything under way.
        rig.post(|| {
            rig.ends[0]
                .endpoint
                .post_write(&rig.write(98, (0, 0, 8), None))
        });
        rig.wait(0, 98);
        let mut started = 0;
        while rig.ends[0]
            .endpoint
            .post_write(&rig.write(started, (0, 0, 8), None))
            .unwrap()
            == Posted::Started
        {
            started += 1;
            assert!(started <= u64::from(rig::CONTEXTS), "contexts are bounded");
        }
        assert!(started > 0);
        println!("{started} writes made {} busy", info.provider_name());
        for id in 0..started {
            rig.wait(0, id);
        }
        rig.post(|| {
            rig.ends[0]
                .endpoint
                .post_write(&rig.write(99, (0, 0, 8), None))
        });
        rig.wait(0, 99);
    });
}

#[test]
fn what_a_provider_would_not_survive_is_refused() {
    for_each(|info| {
        let (rig, other) = (Rig::new(info), Rig::new(info));
        let refused = |result: Result<Posted>, why: &str| {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        };
        let endpoint = &rig.ends[0].endpoint;
        let write = rig.write(1, (0, 0, 8), None);
        let foreign = other.ends[0].region.segment(0, 8).unwrap();
        refused(
            endpoint.post_write(&Write {
                source: foreign,
                ..write
            }),
            "another domain",
        );
        refused(
            endpoint.post_write(&Write {
                peer: &rig.peers[1],
                ..write
            }),
            "vector",
        );
        let readable = Bytes::new(64);
        let owner = Arc::clone(&readable) as Arc<dyn Memory>;
        let limited = Mr::register(&rig.domain, owner, FI_WRITE, Some(endpoint)).unwrap();
        let read = rig.read(2, (0, 0, 8));
        let destination = limited.segment(0, 8).unwrap();
        refused(
            endpoint.post_read(&Read {
                destination,
                ..read
            }),
            "not registered for that",
        );
        assert!(limited.segment(60, 8).is_none() && limited.segment(usize::MAX, 1).is_none());
        assert!(limited.segment(64, 0).is_some() && destination.part(1, 8).is_none());
        assert!(limited.place(0).is_none(), "peers may not reach it");
        assert!(rig.ends[0].region.place(BYTES).is_some());
        assert!(rig.ends[0].region.place(BYTES + 1).is_none());
        let text = endpoint.insert(&[]).err().unwrap().to_string();
        assert!(text.contains("1 to 256 bytes"), "{text}");
        let text = Domain::open(&Fabric::open(info).unwrap(), info).map(|domain| {
            let options = EndpointOptions {
                transmit_queue: &rig.ends[0].queue,
                receive_queue: &rig.ends[0].queue,
                addresses: &AddressVector::open(&domain, 1).unwrap(),
                is_cuda_permitted: None,
            };
            Endpoint::open(&domain, &options).err().unwrap().to_string()
        });
        assert!(
            text.as_ref().unwrap().contains("another domain"),
            "{text:?}"
        );
        rig.post(|| endpoint.post_write(&write));
        rig.wait(0, 1);
    });
}

#[test]
fn shm_is_refused_where_it_checks_no_keys() {
    let _alone = alone();
    let Some(library) = library() else { return };
    let hints = Hints {
        mr_mode: rig::MR_MODE,
        ..hints("shm")
    };
    let offers = match Info::query(library, &hints) {
        Ok(offers) => offers,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let with_addresses = |info: &&Info| info.mr_mode() & FI_MR_VIRT_ADDR != 0;
    for info in offers.iter().filter(with_addresses) {
        let fabric = Fabric::open(info).unwrap();
        let text = Domain::open(&fabric, info).err().unwrap().to_string();
        assert!(text.contains("FI_MR_VIRT_ADDR"), "{text}");
    }
}

#[test]
fn options_that_a_provider_does_not_know_are_none() {
    for_each(|info| {
        let rig = Rig::new(info);
        let endpoint = &rig.ends[0].endpoint;
        assert_eq!(endpoint.is_write_emulated().unwrap(), None);
        let bytes = endpoint.rma_bytes_max().unwrap();
        assert!(bytes.is_none_or(|bytes| bytes >= BYTES), "{bytes:?}");
    });
}

#[test]
fn regions_and_peers_live_until_their_operations_are_polled() {
    for_each(|info| {
        let rig = Rig::new(info);
        let library = library().unwrap();
        let memory = Bytes::new(1 << 16);
        let owner = Arc::clone(&memory) as Arc<dyn Memory>;
        let endpoint = &rig.ends[0].endpoint;
        let region = Mr::register(&rig.domain, owner, FI_READ, Some(endpoint)).unwrap();
        let name = rig.ends[1].endpoint.name().unwrap();
        let peer = endpoint.insert(&name).unwrap();
        rig.ends[1].memory.fill(0..1 << 16, 5);
        let destination = region.segment(0, 1 << 16).unwrap();
        rig.post(|| {
            let read = Read {
                destination,
                peer: &peer,
                ..rig.read(1, (0, 0, 8))
            };
            endpoint.post_read(&read)
        });
        let regions = library.live(Kind::Mr);
        drop((region, peer));
        assert_eq!(library.live(Kind::Mr), regions, "the read holds its region");
        rig.wait(0, 1);
        assert_eq!(library.live(Kind::Mr), regions - 1);
        assert_eq!(Arc::strong_count(&memory), 1, "peers could not reach it");
        assert!(memory.copy(0..1 << 16) == rig.ends[1].memory.copy(0..1 << 16));
    });
}

#[test]
fn memory_that_peers_could_reach_stays_until_the_last_endpoint_is_closed() {
    for_each(|info| {
        let Rig {
            ends,
            peers,
            domain,
        } = Rig::new(info);
        let memory = Bytes::new(4096);
        let owner = Arc::clone(&memory) as Arc<dyn Memory>;
        let endpoint = Some(&ends[0].endpoint);
        drop(Mr::register(&domain, owner, ALL_ACCESS, endpoint).unwrap());
        assert_eq!(
            (Arc::strong_count(&memory), domain.retired_bytes()),
            (2, 4096)
        );
        drop((ends, peers));
        assert_eq!((Arc::strong_count(&memory), domain.retired_bytes()), (1, 0));
    });
}

#[test]
fn operations_under_way_do_not_keep_an_endpoint_open() {
    for_each(|info| {
        let rig = Rig::new(info);
        for id in 0..4 {
            let busy_or_not = rig.ends[0].endpoint.post_read(&rig.read(id, (0, 0, BYTES)));
            let _ = busy_or_not.unwrap();
        }
        // `for_each` counts what is left.
    });
}

#[test]
fn hundreds_of_pairs_leave_nothing() {
    // Other programs have some, too.
    let own = std::process::id().to_string();
    let is_own = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&own);
    let files = || {
        let entries = std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten();
        entries.filter(is_own).count()
    };
    for_each(|info| {
        let before = (files(), descriptors());
        let rounds = if info.provider_name() == "udp;ofi_rxd" {
            20
        } else {
            200
        };
        for round in 0..rounds {
            let rig = Rig::new(info);
            rig.post(|| {
                rig.ends[0]
                    .endpoint
                    .post_write(&rig.write(round, (0, 0, 64), Some(7)))
            });
            rig.wait(0, round);
            rig.wait_data(1);
        }
        println!(
            "{before:?} files and descriptors, then {:?}",
            (files(), descriptors())
        );
        assert_eq!(
            files(),
            before.0,
            "{} left files in /dev/shm",
            info.provider_name()
        );
        assert!(
            descriptors() <= before.1 + 4,
            "{} left descriptors",
            info.provider_name()
        );
    });
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
