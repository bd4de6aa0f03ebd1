//! Two hosts of two ranks each: network namespaces, joined by a pair of interfaces. What is found
//! there: the router, schedules that know hosts, links that are cut for a moment and for good.
//!
//! Namespaces need root and the `ip` command; where one is missing the test says so and looks at
//! nothing.

use super::start::{linerate, parts, scratch};
use linerate_children::hosts::{COMMON, Hosts, place};
use linerate_children::{Child, end};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RANKS: usize = 4;

/// Starts the ranks, two on each host.
fn start(hosts: &Hosts, line: &str) -> Vec<Child> {
    let start = |rank: usize| {
        let mut inside = hosts.inside(rank / 2, &linerate(line));
        Child::start(inside.envs(place(rank, RANKS)).envs(COMMON))
    };
    (0..RANKS).map(start).collect()
}

/// Exit code, standard output and standard error of each rank.
fn ends(ranks: Vec<Child>) -> Vec<(Option<i32>, String, String)> {
    end(ranks).into_iter().map(parts).collect()
}

fn check_good(ends: &[(Option<i32>, String, String)]) {
    for (rank, (code, stdout, stderr)) in ends.iter().enumerate() {
        assert_eq!(*code, Some(0), "rank {rank}: {stdout}{stderr}");
    }
    let table = &ends[0].1;
    assert!(table.contains("# Out of bounds values : 0 OK"), "{table}");
}

#[test]
fn ranks_of_one_host_share_memory_and_hosts_are_joined_by_connections() {
    let Some(hosts) = Hosts::new("route") else {
        return;
    };
    for (collective, told) in [
        ("allreduce", "allreduce of 2097152 B: hierarchical"),
        ("broadcast", "broadcast of 2097152 B"),
        ("all-to-all", "all-to-all of"),
    ] {
        let line = format!("bench {collective} -b 8 -e 4M -f 512 -n 3 --no-rotate --timeout 60");
        let ends = ends(start(&hosts, &line));
        check_good(&ends);
        let text = &ends[0].2;
        assert!(text.contains("transport router"), "{text}");
        assert!(text.contains("the ranks are on 2 hosts"), "{text}");
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn a_link_that_is_cut_for_a_second_delays_the_job_and_nothing_else() {
    let Some(hosts) = Hosts::new("cut") else {
        return;
    };
    let mut ranks = start(
        &hosts,
        "bench allreduce -b 256K -e 256K -n 2000 -w 1 --no-rotate --timeout 60",
    );
    // Rank 0 prints the header when all have joined.
    ranks[0].wait_line("#");
    hosts.set_link("down");
    std::thread::sleep(Duration::from_secs(1));
    hosts.set_link("up");
    check_good(&ends(ranks));
}

#[test]
fn a_link_that_is_cut_for_good_fails_every_rank_naming_who_is_behind_it() {
    let Some(hosts) = Hosts::new("lost") else {
        return;
    };
    let mut ranks = start(
        &hosts,
        "bench allreduce -b 256K -e 256K -n 10000000 -w 1 -c 0 --no-rotate --timeout 3",
    );
    ranks[0].wait_line("#");
    hosts.set_link("down");
    let cut = Instant::now();
    let ends = ends(ranks);
    println!("all ranks had ended {:?} after the cut", cut.elapsed());
    for (rank, (code, _, stderr)) in ends.iter().enumerate() {
        assert_eq!(*code, Some(1), "rank {rank}: {stderr}");
        // One of the two behind the link, or both.
        let there = if rank < 2 { ["2", "3"] } else { ["0", "1"] };
        let names_one = there.iter().any(|peer| {
            stderr.contains(&format!("rank {peer} is missing"))
                || stderr.contains(&format!("rank {peer} failed"))
        });
        let names_both = stderr.contains(&format!("ranks {} are missing", there.join(" and ")));
        assert!(names_one || names_both, "rank {rank}: {stderr}");
    }
}

/// What mpirun calls instead of ssh: becomes the command inside the host of this address, under a
/// name of its own, which mpirun tells hosts by.
fn remote_shell(hosts: &Hosts, folder: &Path) -> std::path::PathBuf {
    let [a, b] = &hosts.names;
    let script = format!(
        "#!/bin/sh\n\
         # The agent of a launcher: ADDRESS COMMAND...\n\
         case $1 in 10.77.0.1) name={a} ;; 10.77.0.2) name={b} ;; *) exit 255 ;; esac\n\
         shift\n\
         exec ip netns exec $name unshare --uts sh -c \"hostname $name; $*\"\n"
    );
    let path = folder.join("remote-shell");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn mpirun_starts_a_bench_across_hosts() {
    let Some(hosts) = Hosts::new("mpirun") else {
        return;
    };
    let is_there = |name: &str| Command::new(name).arg("--version").output().is_ok();
    if let Some(missing) = ["mpirun.openmpi", "unshare"].iter().find(|n| !is_there(n)) {
        println!("skipped: {missing} is not installed");
        return;
    }
    let shell = remote_shell(&hosts, &scratch("hosts-mpirun"));
    let mut command = Command::new(&shell);
    command.arg("10.77.0.1").arg(format!(
        "exec mpirun.openmpi --allow-run-as-root --oversubscribe -n 4 --host 10.77.0.1:2,10.77.0.2:2 \
         --mca plm_rsh_agent {} -x LINERATE_SECRET -x LINERATE_DEBUG {} bench allreduce -b 8 -e 4M -f 512 -n 2 --no-rotate --timeout 60",
        shell.display(),
        env!("CARGO_BIN_EXE_linerate")
    ));
    command
        .env_clear()
        .envs([
            ("PATH", std::env::var("PATH").unwrap()),
            ("LINERATE_SECRET", "0123456789abcdef".into()),
            ("LINERATE_DEBUG", "info".into()),
        ])
        .stdin(Stdio::null());
    let (code, stdout, stderr) = parts(command.output().unwrap());
    let told = format!("{stdout}{stderr}");
    assert_eq!(code, Some(0), "{told}");
    assert!(stdout.contains("# Out of bounds values : 0 OK"), "{told}");
    for word in [
        "rank 0 of 4 (by Open MPI): address 10.77.0.1",
        "rank 3 of 4 (by Open MPI): address 10.77.0.2",
        "the ranks are on 2 hosts",
        "transport router",
    ] {
        assert!(told.contains(word), "{word}: {told}");
    }
}
