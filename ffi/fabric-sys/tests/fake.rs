//! What the providers of most machines do not do, shown with one that is written for that
//! (`fake/fabric.c`). Where libfabric's headers or a C compiler are missing, a test says so and
//! passes.
#![allow(missing_docs, unsafe_code)]

mod rig;

use linerate_fabric_sys::raw::*;
use linerate_fabric_sys::*;
use rig::{ALL_ACCESS, Bytes, CAPS, MODE, MR_MODE};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

const SCRIPT: &str = "
FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { global: fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.1;
";

/// Builds the library in a folder that is removed when it is loaded.
fn build(folder: &Path) -> std::result::Result<Arc<Library>, String> {
    if !Path::new("/usr/include/rdma/fabric.h").exists() {
        return Err("no rdma/fabric.h (Debian: apt-get install libfabric-dev)".into());
    }
    std::fs::create_dir_all(folder).unwrap();
    let (script, library) = (folder.join("script"), folder.join("libfabric.so"));
    std::fs::write(&script, SCRIPT).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/fabric.c");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", source, "-o"])
        .arg(&library)
        .arg(format!("-Wl,--version-script={}", script.display()))
        .output()
        .map_err(|e| format!("no C compiler: {e}"))?;
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    Ok(Library::open_as(Some(library.as_os_str()), 4).unwrap())
}

fn fake() -> Option<&'static Arc<Library>> {
    static BUILT: OnceLock<std::result::Result<Arc<Library>, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let name = format!("linerate-fabric-fake-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let built = build(&folder);
        let _ = std::fs::remove_dir_all(&folder);
        built
    });
    match built {
        Ok(library) => Some(library),
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

fn info_of(library: &Arc<Library>, domain: Option<&str>) -> Info {
    let hints = Hints {
        domain,
        caps: CAPS,
        mode: MODE,
        mr_mode: MR_MODE,
        ..Hints::default()
    };
    Info::query(library, &hints).unwrap().remove(0)
}

/// An endpoint that names itself.
struct End {
    peer: Arc<Peer>,
    region: Arc<Mr>,
    memory: Arc<Bytes>,
    endpoint: Arc<Endpoint>,
    queue: Arc<CompletionQueue>,
    addresses: Arc<AddressVector>,
    domain: Arc<Domain>,
}

impl End {
    fn new(info: &Info) -> End {
        let domain = Domain::open(&Fabric::open(info).unwrap(), info).unwrap();
        let queue = CompletionQueue::open(&domain, 16, 4, Wait::Poll).unwrap();
        let addresses = AddressVector::open(&domain, 4).unwrap();
        let endpoint = Endpoint::open(
            &domain,
            &EndpointOptions {
                transmit_queue: &queue,
                receive_queue: &queue,
                addresses: &addresses,
                is_cuda_permitted: Some(false),
            },
        )
        .unwrap();
        let memory = Bytes::new(4096);
        let owner = Arc::clone(&memory) as Arc<dyn Memory>;
        let region = Mr::register(&domain, owner, ALL_ACCESS, Some(&endpoint)).unwrap();
        let peer = endpoint.insert(&endpoint.name().unwrap()).unwrap();
        End {
            peer,
            region,
            memory,
            endpoint,
            queue,
            addresses,
            domain,
        }
    }

    /// A write of 8 bytes from 0 to 100.
    fn write(&self, id: u64, data: Option<u32>) -> Write<'_> {
        Write {
            id,
            source: self.region.segment(0, 8).unwrap(),
            peer: &self.peer,
            place: self.region.place(100).unwrap(),
            data,
            is_more: false,
        }
    }

    /// The numbers of operations that are complete, with the numbers that came with them.
    fn completed(&self) -> Vec<(Option<u64>, Option<u32>)> {
        let mut room = [Completion::default(); 8];
        let count = self.queue.poll(&mut room).unwrap();
        room[..count]
            .iter()
            .map(|done| (done.id(), done.data()))
            .collect()
    }
}

#[test]
fn an_info_tells_limits_and_the_nic() {
    let Some(library) = fake() else { return };
    assert_eq!(library.version(), Version::MAX);
    let info = info_of(library, None);
    assert_eq!(
        (info.provider_name(), info.fabric_name()),
        ("fake".into(), "fake".into())
    );
    assert_eq!(info.domain_name(), "fake0");
    assert_eq!(
        (info.caps(), info.mode(), info.mr_mode()),
        (CAPS, FI_CONTEXT2 | FI_RX_CQ_DATA, MR_MODE)
    );
    assert_eq!(
        (
            info.mr_key_bytes(),
            info.mr_pieces_max(),
            info.cq_data_bytes()
        ),
        (4, 1, 4)
    );
    assert_eq!(
        (info.inject_bytes_max(), info.message_bytes_max()),
        (32, 4096)
    );
    assert_eq!((info.transmits_max(), info.receives_max()), (64, 64));
    assert_eq!(
        (info.pieces_max(), info.remote_pieces_max(), info.protocol()),
        (2, 1, 77)
    );
    assert_eq!(info.threading(), fi_threading::FI_THREAD_DOMAIN);
    assert_eq!(info.data_progress(), fi_progress::FI_PROGRESS_MANUAL);
    assert_eq!(info.control_progress(), fi_progress::FI_PROGRESS_AUTO);
    assert_eq!(info.source_address().unwrap(), b"me\0");
    let nic = info.nic().unwrap();
    assert_eq!(
        (&*nic.name, nic.link_bits_per_s),
        ("fake0", Some(400_000_000_000))
    );
    assert_eq!(nic.pci.unwrap().to_string(), "0000:9a:00.1");
}

#[test]
fn a_write_with_a_number_takes_a_receive() {
    let Some(library) = fake() else { return };
    let end = End::new(&info_of(library, None));
    end.memory.fill(0..8, 6);
    assert_eq!(
        end.endpoint.post_write(&end.write(1, Some(9))).unwrap(),
        Posted::Busy
    );
    assert_eq!(end.endpoint.post_receive(50).unwrap(), Posted::Started);
    assert_eq!(end.endpoint.post_receive(51).unwrap(), Posted::Started);
    assert_eq!(
        end.endpoint.post_write(&end.write(1, Some(9))).unwrap(),
        Posted::Started
    );
    let more = Write {
        is_more: true,
        ..end.write(2, Some(10))
    };
    assert_eq!(end.endpoint.post_write(&more).unwrap(), Posted::Started);
    // Two receives and two writes are all that the queue has contexts for.
    assert_eq!(end.endpoint.post_receive(52).unwrap(), Posted::Busy);
    assert_eq!(end.queue.contexts(), 4);
    let expected = [
        (Some(1), None),
        (Some(50), Some(9)),
        (Some(2), None),
        (Some(51), Some(10)),
    ];
    assert_eq!(end.completed(), expected);
    assert_eq!(end.memory.copy(100..108), end.memory.copy(0..8));
    assert_eq!(end.endpoint.post_receive(52).unwrap(), Posted::Started);
}

#[test]
fn a_failure_comes_after_the_completions_before_it_and_says_why() {
    let Some(library) = fake() else { return };
    let end = End::new(&info_of(library, None));
    let mut write = end.write(2, None);
    assert_eq!(
        end.endpoint.post_write(&end.write(1, None)).unwrap(),
        Posted::Started
    );
    write.place.key = 5;
    assert_eq!(end.endpoint.post_write(&write).unwrap(), Posted::Started);
    assert_eq!(end.completed(), [(Some(1), None)]);
    let error = end.queue.poll(&mut [Completion::default(); 4]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Write 2 of fake0 of fake failed: no such key (code 129; the provider's 42: the key is wrong)"
    );
    let PollError::Operation(failure) = error else {
        panic!("{error}")
    };
    assert_eq!(
        (failure.id, failure.operation),
        (Some(2), Some(Operation::Write))
    );
    assert_eq!((failure.code, failure.provider_code), (129, 42));
    assert_eq!(end.completed(), [], "it is told once");
}

#[test]
fn what_the_tables_lack_is_an_error() {
    let Some(library) = fake() else { return };
    let end = End::new(&info_of(library, None));
    let read = Read {
        id: 1,
        destination: end.region.segment(0, 8).unwrap(),
        peer: &end.peer,
        place: end.region.place(0).unwrap(),
        is_more: false,
    };
    for is_more in [false, true] {
        let error = end
            .endpoint
            .post_read(&Read { is_more, ..read })
            .unwrap_err();
        assert_eq!(error.code(), Some(libc::ENOSYS), "{error}");
    }
    let long = Bytes::new(5000);
    let region = Mr::register(&end.domain, long, FI_WRITE, Some(&end.endpoint)).unwrap();
    let source = region.segment(0, 4097).unwrap();
    let error = end
        .endpoint
        .post_write(&Write {
            source,
            ..end.write(1, None)
        })
        .unwrap_err();
    assert!(error.to_string().contains("at most 4096 bytes"), "{error}");
    let error = CompletionQueue::open(&end.domain, 1000, 4, Wait::Poll)
        .err()
        .unwrap();
    assert_eq!(error.code(), Some(libc::EINVAL), "{error}");
    assert!(error.to_string().contains("1000 entries"), "{error}");
}

#[test]
fn a_region_that_belongs_to_an_endpoint_needs_one() {
    let Some(library) = fake() else { return };
    let (end, other) = (
        End::new(&info_of(library, None)),
        End::new(&info_of(library, None)),
    );
    for endpoint in [None, Some(&other.endpoint)] {
        let error = Mr::register(&end.domain, Bytes::new(64), FI_WRITE, endpoint)
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .contains("needs an endpoint of the domain"),
            "{error}"
        );
    }
    assert_eq!(end.endpoint.rma_bytes_max().unwrap(), Some(2048));
}

#[test]
fn names_that_a_provider_takes_for_one_are_one_peer() {
    let Some(library) = fake() else { return };
    let end = End::new(&info_of(library, None));
    let again = end.addresses.insert(b"me\0").unwrap();
    assert_eq!(again.number(), end.peer.number());
    let text = end.addresses.insert(b"my").err().unwrap().to_string();
    assert!(text.contains("another name that is there"), "{text}");
    assert_eq!(
        end.addresses.insert(b"!").err().unwrap().code(),
        Some(libc::EINVAL)
    );
    drop(again);
    assert_eq!(
        end.endpoint.post_write(&end.write(1, None)).unwrap(),
        Posted::Started
    );
}

#[test]
fn calls_of_a_domain_that_wants_one_at_a_time_do_not_overlap() {
    let Some(library) = fake() else { return };
    let end = End::new(&info_of(library, None));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let end = &end;
            scope.spawn(move || {
                for round in 0..1000 {
                    let _busy_or_not = end
                        .endpoint
                        .post_write(&end.write(1000 * thread + round, None))
                        .unwrap();
                    end.completed();
                }
            });
        }
    });
}

/// The provider refuses to close what others need, and `live` and the failures belong to the
/// library, so all that counts is in one test and has a library of its own.
#[test]
fn what_cannot_be_closed_is_told_and_its_memory_stays() {
    let folder = std::env::temp_dir().join(format!("linerate-fabric-stuck-{}", std::process::id()));
    let built = build(&folder);
    let _ = std::fs::remove_dir_all(&folder);
    let library = match built {
        Ok(library) => library,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    for _ in 0..300 {
        let end = End::new(&info_of(&library, None));
        assert_eq!(end.endpoint.post_receive(1).unwrap(), Posted::Started);
        assert_eq!(
            end.endpoint.post_write(&end.write(1, Some(1))).unwrap(),
            Posted::Started
        );
        end.completed();
    }
    assert_eq!(
        library.take_failures(),
        Vec::<String>::new(),
        "the order was right"
    );
    assert_eq!(Kind::ALL.map(|kind| library.live(kind)), [0; 6]);

    let end = End::new(&info_of(&library, Some("stuck")));
    let memory = Arc::clone(&end.memory);
    let weak_queue = Arc::downgrade(&end.queue);
    drop(end);
    assert_eq!(
        Arc::strong_count(&memory),
        2,
        "the provider may still write it"
    );
    assert!(
        weak_queue.upgrade().is_some(),
        "the endpoint may still use its contexts"
    );
    let failures = library.take_failures();
    assert_eq!(
        failures,
        [
            "closing a Mr of stuck of fake: Device or resource busy (code 16)",
            "closing a Endpoint of stuck of fake: Device or resource busy (code 16)"
        ]
    );
    assert_eq!(library.live(Kind::Mr), 1);
    assert_eq!(library.live(Kind::Endpoint), 1);
}
