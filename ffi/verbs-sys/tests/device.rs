//! Verbs on a real device or Soft-RoCE: two queue pairs of one process, connected to each other.
//! Where there is no device each test says so and passes, unless LINERATE_TEST_RDMA is set.
#![allow(missing_docs, unsafe_code)]

mod rig;

use linerate_verbs_sys::raw::*;
use linerate_verbs_sys::*;
use rig::{ALL_ACCESS, BYTES, Bytes, Rig, device, register, request, route};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const KINDS: [Kind; 8] = [
    Kind::Context,
    Kind::Pd,
    Kind::Mr,
    Kind::Channel,
    Kind::CompletionQueue,
    Kind::SharedReceiveQueue,
    Kind::QueuePair,
    Kind::AddressHandle,
];

#[test]
fn a_device_says_what_it_can_do() {
    let Some(context) = device() else { return };
    let attributes = context.attributes().unwrap();
    assert!(attributes.orig_attr.max_qp > 0, "{attributes:?}");
    assert!(attributes.orig_attr.phys_port_cnt >= 1);
    let port = context.port(1).unwrap();
    assert!(
        port.gid_tbl_len > 0 && port.active_mtu.0 >= ibv_mtu::IBV_MTU_256.0,
        "{port:?}"
    );
    let gids = context.gids(1).unwrap();
    assert!(!gids.is_empty());
    for gid in &gids {
        assert_eq!(context.gid(1, gid.index).unwrap(), gid.bytes);
        assert_eq!(context.gid_entry(1, gid.index).unwrap(), *gid);
    }
    assert!(
        context
            .port(77)
            .unwrap_err()
            .to_string()
            .contains("port 77")
    );
    assert!(context.completion_vectors() >= 1);
    assert_eq!(context.poll_event().unwrap(), None);
}

#[test]
fn writes_and_reads_move_registered_bytes() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    rig.memory[0].fill(0..5000, 7);
    let done = rig.run(
        Operation::Write(rig.place(1, 100), None),
        Local::One(rig.segment(0, 0, 5000)),
    );
    assert!(done.is_success(), "{done:?}");
    assert_eq!(done.opcode(), ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    assert_eq!(
        rig.memory[1].copy(99..5101),
        [&[0][..], &[7; 5000], &[0]].concat()
    );

    rig.memory[1].fill(0..10, 9);
    let pieces = [rig.segment(0, 10, 4), rig.segment(0, 20, 6)];
    let done = rig.run(Operation::Read(rig.place(1, 0)), Local::Many(&pieces));
    assert!(done.is_success(), "{done:?}");
    assert_eq!(
        rig.memory[0].copy(9..27),
        [7, 9, 9, 9, 9, 7, 7, 7, 7, 7, 7, 9, 9, 9, 9, 9, 9, 7]
    );
}

#[test]
fn messages_and_immediate_numbers_take_receives_in_order() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    let segments = [rig.segment(1, 0, 64)];
    let receives = [1, 2, 3].map(|id| ReceiveRequest {
        id,
        segments: if id == 3 { &[] } else { &segments },
    });
    rig.pair[1].post_receive(&receives).unwrap();
    rig.memory[0].fill(0..8, 5);
    rig.run(Operation::Send(None), Local::One(rig.segment(0, 0, 8)));
    rig.run(Operation::Send(Some(0x01020304)), Local::Inline(b"inline"));
    rig.run(
        Operation::Write(rig.place(1, 1000), Some(u32::MAX)),
        Local::One(rig.segment(0, 0, 8)),
    );
    let [first, second, third] = rig.wait(1, 3)[..] else {
        unreachable!()
    };
    assert_eq!(
        (first.id(), first.len_bytes(), first.immediate()),
        (1, 8, None)
    );
    assert_eq!(first.opcode(), ibv_wc_opcode::IBV_WC_RECV);
    assert_eq!(
        (second.id(), second.len_bytes(), second.immediate()),
        (2, 6, Some(0x01020304))
    );
    assert_eq!((third.id(), third.immediate()), (3, Some(u32::MAX)));
    assert_eq!(third.opcode(), ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!(rig.memory[1].copy(0..8), *b"inline\x05\x05");
    assert_eq!(rig.memory[1].copy(1000..1009), [5, 5, 5, 5, 5, 5, 5, 5, 0]);
}

#[test]
fn atomics_return_what_was_there() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    let (target, result) = (rig.memory[1].word(2), rig.memory[0].word(0));
    target.store(40, Ordering::Relaxed);
    let place = rig.place(1, 16);
    let local = Local::One(rig.segment(0, 0, 8));
    assert!(
        rig.run(Operation::FetchAndAdd { place, add: 2 }, local)
            .is_success()
    );
    assert_eq!(
        (
            target.load(Ordering::Relaxed),
            result.load(Ordering::Relaxed)
        ),
        (42, 40)
    );
    let swap = |compare| Operation::CompareAndSwap {
        place,
        compare,
        swap: 1,
    };
    assert!(rig.run(swap(41), local).is_success());
    assert_eq!(
        (
            target.load(Ordering::Relaxed),
            result.load(Ordering::Relaxed)
        ),
        (42, 42)
    );
    assert!(rig.run(swap(42), local).is_success());
    assert_eq!(target.load(Ordering::Relaxed), 1);
}

#[test]
fn a_list_longer_than_a_batch_is_posted_whole_and_one_completion_tells_of_all() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    let count = 3 * BATCH + 1;
    rig.memory[0].fill(0..count, 1);
    let requests: Vec<SendRequest<'_>> = (0..count)
        .map(|index| SendRequest {
            is_signaled: index + 1 == count,
            ..request(
                index as u64,
                Operation::Write(rig.place(1, index), None),
                Local::One(rig.segment(0, index, 1)),
            )
        })
        .collect();
    rig.pair[0].post_send(&requests).unwrap();
    assert_eq!(rig.wait(0, 1)[0].id(), count as u64 - 1);
    assert_eq!(
        rig.memory[1].copy(0..count + 1),
        [vec![1; count], vec![0]].concat()
    );
}

#[test]
fn a_full_queue_says_how_much_it_took() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    // Receives stay until messages come.
    let room = rig.pair[1].capacity().max_recv_wr as usize;
    let receives = vec![
        ReceiveRequest {
            id: 0,
            segments: &[]
        };
        4 * room
    ];
    let error = rig.pair[1].post_receive(&receives).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(
        (room..4 * room).contains(&error.posted),
        "{error} of a queue of {room}"
    );
}

#[test]
fn requests_that_the_library_would_not_survive_are_refused() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    let place = rig.place(1, 0);
    let long = vec![0; rig.pair[0].inline_bytes_max() as usize + 1];
    let many = vec![rig.segment(0, 0, 1); rig.pair[0].capacity().max_send_sge as usize + 1];
    let handle = AddressHandle::create(&rig.pd, &route(&context)).unwrap();
    let datagram = Operation::Datagram {
        to: &handle,
        queue_pair: 1,
        key: 0,
        immediate: None,
    };
    let add = Operation::FetchAndAdd { place, add: 1 };
    for (operation, local) in [
        (Operation::Send(None), Local::Inline(&long)),
        (Operation::Read(place), Local::Inline(b"x")),
        (Operation::Write(place, None), Local::Many(&many)),
        (add, Local::Empty),
        (add, Local::One(rig.segment(0, 0, 7))),
        (datagram, Local::Inline(b"x")),
    ] {
        let good = request(1, Operation::Write(place, None), Local::Empty);
        let error = rig.pair[0]
            .post_send(&[good, request(2, operation, local)])
            .unwrap_err();
        assert_eq!(
            error,
            PostError {
                posted: 0,
                errno: libc::EINVAL
            }
        );
    }
    assert!(rig.region[0].segment(BYTES, 0).is_some());
    assert!(rig.region[0].segment(BYTES - 1, 2).is_none());
    assert!(rig.region[0].segment(usize::MAX, 1).is_none());
    assert!(rig.region[0].place(BYTES + 1).is_none());
    assert!(rig.segment(0, 8, 8).part(4, 5).is_none());
}

#[test]
fn a_channel_tells_of_the_completion_that_was_asked_for() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    assert_eq!(rig.channel.poll_event().unwrap(), None);
    rig.queue[1].request_event(false).unwrap();
    rig.pair[1]
        .post_receive(&[ReceiveRequest {
            id: 1,
            segments: &[],
        }])
        .unwrap();
    rig.run(Operation::Send(Some(1)), Local::Empty);
    let mut source = libc::pollfd {
        fd: rig.channel.fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, writable. A minute: so that a hang is a failure.
    let ready = unsafe { libc::poll(&mut source, 1, 60_000) };
    assert_eq!(ready, 1, "an event makes the descriptor readable");
    assert_eq!(rig.channel.poll_event().unwrap(), Some(200));
    assert_eq!(
        rig.channel.poll_event().unwrap(),
        None,
        "one request, one event"
    );
    assert_eq!(rig.wait(1, 1)[0].id(), 1);
}

#[test]
fn a_pair_forced_into_error_flushes_what_it_has_and_what_comes() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    let receives = [4, 5].map(|id| ReceiveRequest { id, segments: &[] });
    rig.pair[0].post_receive(&receives).unwrap();
    rig.pair[0].to_error().unwrap();
    assert_eq!(rig.pair[0].state().unwrap(), ibv_qp_state::IBV_QPS_ERR);
    rig.pair[0]
        .post_send(&[request(6, Operation::Send(None), Local::Empty)])
        .unwrap();
    let mut flushed = rig.wait(0, 3);
    flushed.sort_by_key(Completion::id);
    for (completion, id) in flushed.iter().zip(4..) {
        assert_eq!(completion.id(), id);
        assert!(
            completion.is_flushed() && !completion.is_success(),
            "{completion:?}"
        );
    }
    let text = context.library().status_text(flushed[0].status());
    assert!(text.to_lowercase().contains("flush"), "{text}");
}

#[test]
fn a_region_that_is_gone_is_refused_on_both_sides() {
    let Some(context) = device() else { return };
    let rig = Rig::new(&context);
    let other = Bytes::new(4096);
    let region = register(&rig.pd, &other);
    let (place, segment) = (region.place(0).unwrap(), region.segment(0, 8).unwrap());
    assert!(
        rig.run(
            Operation::Write(place, None),
            Local::One(rig.segment(0, 0, 8))
        )
        .is_success()
    );
    drop(region);
    assert_eq!(
        Arc::strong_count(&other),
        1,
        "the region has let go of its bytes"
    );
    let done = rig.run(
        Operation::Write(place, None),
        Local::One(rig.segment(0, 0, 8)),
    );
    assert_eq!(
        done.status(),
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
        "{done:?}"
    );

    let fresh = Rig::new(&context);
    let done = fresh.run(
        Operation::Write(fresh.place(1, 0), None),
        Local::One(segment),
    );
    // Devices check the key; Soft-RoCE calls what it finds a fault of the queue pair's operation.
    let statuses = [
        ibv_wc_status::IBV_WC_LOC_PROT_ERR,
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR,
    ];
    assert!(statuses.contains(&done.status()), "{done:?}");
    assert_eq!(fresh.memory[1].copy(0..8), [0; 8]);
}

#[test]
fn a_shared_queue_feeds_several_pairs_and_says_when_it_runs_low() {
    let Some(context) = device() else { return };
    let pd = Pd::allocate(&context).unwrap();
    let shared = SharedReceiveQueue::create(&pd, 16, 1, 77).unwrap();
    let rigs = [(); 2].map(|()| Rig::with(&context, Some((&pd, &shared))));
    let receives = [1, 2, 3].map(|id| ReceiveRequest { id, segments: &[] });
    shared.post(&receives).unwrap();
    shared.set_limit(2).unwrap();
    let refused = rigs[0].pair[1].post_receive(&receives).unwrap_err();
    assert_eq!(refused.errno, libc::EINVAL);
    for rig in &rigs {
        assert!(rig.run(Operation::Send(Some(8)), Local::Empty).is_success());
        assert_eq!(rig.wait(1, 1)[0].immediate(), Some(8));
    }
    // One of three is left, and two were the limit.
    let event = rigs[0].wait_for(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
    assert_eq!(event.subject, Subject::SharedReceiveQueue(77));
}

#[test]
fn a_thousand_of_everything_leave_nothing() {
    let Some(context) = device() else { return };
    let library = Arc::clone(context.library());
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = KINDS.map(|kind| library.live(kind));
    let held = descriptors();
    for _ in 0..1000 {
        let rig = Rig::new(&context);
        let _handle = AddressHandle::create(&rig.pd, &route(&context)).unwrap();
        let _shared = SharedReceiveQueue::create(&rig.pd, 1, 1, 0).unwrap();
        assert_eq!(library.live(Kind::QueuePair), 2);
    }
    assert_eq!(KINDS.map(|kind| library.live(kind)), before);
    assert_eq!(library.take_failures(), Vec::<String>::new());
    // Other tests run beside this one and have descriptors too, but not hundreds.
    assert!(descriptors() < held + 500, "{} after {held}", descriptors());
    drop(context);
    assert_eq!(KINDS.map(|kind| library.live(kind)), [0; 8]);
}

#[test]
fn objects_hold_what_they_are_made_of() {
    let Some(context) = device() else { return };
    let library = Arc::clone(context.library());
    let Rig {
        pair: [pair, _], ..
    } = Rig::new(&context);
    drop(context);
    assert_eq!(library.live(Kind::QueuePair), 1);
    assert_eq!(library.live(Kind::Context), 1);
    pair.to_error().unwrap();
    drop(pair);
    assert_eq!(KINDS.map(|kind| library.live(kind)), [0; 8]);
    assert_eq!(library.take_failures(), Vec::<String>::new());
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let Some(context) = device() else { return };
    let Some(other) = device() else { return };
    let (pd, queue) = (
        Pd::allocate(&context).unwrap(),
        CompletionQueue::create(&other, 4, None, 0, 0).unwrap(),
    );
    let options = QueuePairOptions {
        kind: ibv_qp_type::IBV_QPT_RC,
        send_queue: &queue,
        receive_queue: &queue,
        shared_receives: None,
        capacity: ibv_qp_cap::default(),
        is_all_signaled: false,
    };
    let text = QueuePair::create(&pd, &options).err().unwrap().to_string();
    assert!(text.contains("another device"), "{text}");
    let channel = CompletionChannel::create(&other).unwrap();
    assert!(CompletionQueue::create(&context, 4, Some(&channel), 0, 0).is_err());
    let memory = Bytes::new(64) as Arc<dyn Memory>;
    let access = ALL_ACCESS | ibv_access_flags::IBV_ACCESS_ZERO_BASED;
    assert!(Mr::register(&pd, memory, access).is_err());
    let text = CompletionQueue::create(&context, 1 << 30, None, 0, 0)
        .err()
        .unwrap()
        .to_string();
    assert!(text.contains("1073741824 entries"), "{text}");
}

/// In a process of its own, because only the thread that forks goes on in the child.
#[test]
fn what_a_forked_child_drops_stays_the_parent_s() {
    if device().is_none() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let output = std::process::Command::new(own)
        .args([
            "--exact",
            "forks",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "run by what_a_forked_child_drops_stays_the_parent_s"]
fn forks() {
    let context = device().expect("the other test has found one");
    let rig = Rig::new(&context);
    rig.memory[0].fill(0..8, 3);
    // SAFETY: the child drops, and leaves without running anything else.
    match unsafe { libc::fork() } {
        0 => {
            drop(rig);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    let done = rig.run(
        Operation::Write(rig.place(1, 0), None),
        Local::One(rig.segment(0, 0, 8)),
    );
    assert!(done.is_success(), "{done:?}");
    assert_eq!(rig.memory[1].copy(0..8), [3; 8]);
}
