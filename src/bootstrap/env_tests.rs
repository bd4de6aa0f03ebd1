//! What each launcher sets, as it was seen, and what is made of it.

use super::*;

fn place(pairs: &[(&str, &str)]) -> Result<Place> {
    place_from_env(|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_string()))
}

fn refusal(pairs: &[(&str, &str)]) -> String {
    place(pairs).unwrap_err().to_string()
}

const TORCHRUN: [(&str, &str); 7] = [
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
];

#[test]
fn torchruns_ranks_meet_on_ports_of_its_host_that_are_not_its_own() {
    let found = place(&TORCHRUN).unwrap();
    assert_eq!((found.rank, found.ranks, found.epoch), (3, 4, 2));
    assert_eq!(found.job, "node1:29500:none");
    assert_eq!(found.rendezvous, Rendezvous::Ports("node1".into()));
    let ports = found.ports();
    assert_eq!(ports, place(&TORCHRUN).unwrap().ports());
    let mut distinct = ports.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 8);
    assert!(ports.iter().all(|port| (20_000..32_000).contains(port)));
    let other = Place {
        job: "node1:29501:none".into(),
        ..found
    };
    assert_ne!(other.ports(), ports);
}

#[test]
fn ranks_of_one_host_meet_there_unless_the_launcher_is_asked_for() {
    let mut pairs = TORCHRUN.to_vec();
    pairs[2] = ("LOCAL_WORLD_SIZE", "4");
    let found = place(&pairs).unwrap();
    assert!(found.is_on_one_host() && found.rendezvous == Rendezvous::Host);
    pairs.push(("LINERATE_RENDEZVOUS", "launcher"));
    let asked = place(&pairs).unwrap();
    assert_eq!(asked.rendezvous, Rendezvous::Ports("node1".into()));
    let named = place(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("LINERATE_JOB", "j")]).unwrap();
    assert_eq!(
        (named.rendezvous, named.job),
        (Rendezvous::Host, "j".into())
    );
}

#[test]
fn open_mpi_s_ranks_meet_by_pmix() {
    let mut pairs = vec![
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "2036727809"),
    ];
    let found = place(&pairs).unwrap();
    assert_eq!(found.rendezvous, Rendezvous::Pmix);
    assert_eq!((found.rank, found.job.as_str()), (1, "ompi-2036727809"));
    pairs.pop();
    let text = refusal(&pairs);
    assert!(
        text.contains("tcp://") && text.contains("file://"),
        "{text}"
    );
}

#[test]
fn mpich_s_ranks_meet_by_pmi() {
    let pairs = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "6")];
    assert_eq!(place(&pairs).unwrap().rendezvous, Rendezvous::Pmi(6));
    let text = refusal(&pairs[..2]);
    assert!(text.contains("PMI_FD") && text.contains("tcp://"), "{text}");
}

#[test]
fn slurm_s_ranks_meet_on_the_first_host_of_the_list() {
    let mut pairs = vec![
        ("SLURM_PROCID", "2"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_NNODES", "2"),
        ("SLURM_JOB_NODELIST", "gpu[07-09,12],login"),
    ];
    let found = place(&pairs).unwrap();
    assert_eq!(found.rendezvous, Rendezvous::Ports("gpu07".into()));
    assert_eq!((found.rank, found.job.as_str()), (2, "slurm-77-0"));
    // A script of sbatch is no rank.
    pairs[2] = ("SLURM_STEP_ID", "4294967291");
    assert_eq!(place(&pairs).unwrap().ranks, 1);
    pairs[2] = ("SLURM_STEP_ID", "1");
    pairs.pop();
    assert!(refusal(&pairs).contains("SLURM_JOB_NODELIST"));
}

#[test]
fn an_explicit_rendezvous_comes_first() {
    let with = |text: &'static str| {
        let mut pairs = TORCHRUN.to_vec();
        pairs.push(("LINERATE_RENDEZVOUS", text));
        place(&pairs).map(|place| place.rendezvous)
    };
    let tcp = |host: &str, port| Rendezvous::Tcp {
        host: host.into(),
        port,
    };
    assert_eq!(with("tcp://node1:4000").unwrap(), tcp("node1", 4000));
    assert_eq!(with("tcp://[fd00::1]:4000").unwrap(), tcp("fd00::1", 4000));
    assert_eq!(
        with("file:///nfs/job").unwrap(),
        Rendezvous::Folder("/nfs/job".into())
    );
    for bad in [
        "tcp://node1",
        "tcp://node1:0",
        "tcp://:1",
        "file://",
        "http://a:1",
        "node1",
    ] {
        let text = with(bad).unwrap_err().to_string();
        assert!(
            text.contains("LINERATE_RENDEZVOUS") && text.contains("file://"),
            "{text}"
        );
    }
    let named = Place::named(1, 2, "tcp://node1:4000").unwrap();
    assert_eq!(named.rendezvous, tcp("node1", 4000));
    assert_eq!(
        Place::named(0, 2, "job").unwrap().rendezvous,
        Rendezvous::Host
    );
}

#[test]
fn no_launcher_means_one_rank() {
    assert_eq!(place(&[]).unwrap().ranks, 1);
}

#[test]
fn half_a_launcher_is_an_error_that_names_the_variable() {
    for (pairs, word) in [
        (vec![("WORLD_SIZE", "2")], "RANK"),
        (
            vec![("WORLD_SIZE", "two"), ("RANK", "0")],
            "WORLD_SIZE is 'two'",
        ),
        (
            vec![("WORLD_SIZE", "2"), ("RANK", "2"), ("LINERATE_JOB", "j")],
            "RANK=2",
        ),
        (vec![("WORLD_SIZE", "0"), ("RANK", "0")], "WORLD_SIZE=0"),
        (vec![("WORLD_SIZE", "2"), ("RANK", "1")], "LINERATE_JOB"),
    ] {
        let text = refusal(&pairs);
        assert!(text.contains(word), "{text}");
    }
}
