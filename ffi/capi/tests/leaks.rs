//! A thousand communicators with all that is made of them leave no descriptor, thread or memory.
#![allow(unsafe_code)]

use linerate_c::*;
use std::ffi::CString;
use std::ptr::{null, null_mut};

/// Entries of a folder of this process.
fn entries(of: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{of}"))
        .unwrap()
        .count()
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = text.split_whitespace().nth(1).unwrap();
    4096 * pages.parse::<usize>().unwrap()
}

/// Makes a communicator and everything that one has, uses it, and frees all.
fn live_and_end(rank: u32, ranks: u32, job: &str) {
    let job = CString::new(job).unwrap();
    let (mut comm, mut apart, mut memory, mut queue) = (0, 0, 0, 0);
    let (mut address, mut file, mut count) = (null_mut(), -1, 0);
    let done = |status: i32| assert_eq!(status, LINERATE_DONE);
    // SAFETY: every address is that of a variable or of memory of the library, which lives on.
    unsafe {
        done(linerate_init_by_name(
            rank,
            ranks,
            job.as_ptr(),
            0,
            &mut comm,
        ));
        done(linerate_duplicate(comm, &mut apart));
        done(linerate_alloc(comm, 8192, &mut memory, &mut address));
        done(linerate_queue_create(apart, &mut queue));
        done(linerate_queue_fd(queue, &mut file));
        let mut call: linerate_call = std::mem::zeroed();
        call.size = size_of::<linerate_call>() as u64;
        (call.collective, call.dtype, call.op) = (LINERATE_ALL_REDUCE, LINERATE_F32, LINERATE_SUM);
        (call.count, call.input, call.output) = (2048, address.cast_const(), address);
        call.queue = queue;
        done(linerate_start(comm, &call, null_mut()));
        let mut ended: linerate_completion = std::mem::zeroed();
        ended.size = size_of::<linerate_completion>() as u64;
        done(linerate_queue_wait(
            queue,
            &mut ended,
            1,
            u64::MAX,
            &mut count,
        ));
        assert_eq!((count, ended.status), (1, LINERATE_DONE));
        done(linerate_group_run(apart, null(), 0, 0));
        done(linerate_queue_free(queue));
        done(linerate_memory_free(memory));
        done(linerate_destroy(apart));
        done(linerate_finalize(comm));
    }
}

#[test]
fn a_thousand_communicators_leave_nothing_behind() {
    let mut before = None;
    for number in 0..1000 {
        let job = format!("leaks-{}-{number}", std::process::id());
        match number % 5 {
            0 => std::thread::scope(|scope| {
                for rank in 0..2 {
                    let job = &job;
                    scope.spawn(move || live_and_end(rank, 2, job));
                }
            }),
            _ => live_and_end(0, 1, &job),
        }
        if number == 99 {
            before = Some((entries("fd"), entries("task"), resident_bytes()));
        }
    }
    let (files, threads, bytes) = before.unwrap();
    assert_eq!((entries("fd"), entries("task")), (files, threads));
    let grown = resident_bytes().saturating_sub(bytes);
    assert!(grown < 4 << 20, "{grown} bytes more after 900 further ones");
}
