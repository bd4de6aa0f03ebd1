//! C programs against the libraries: one calls every function, the examples take what
//! `tools/install-c` installs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
const RANKS: usize = 2;

/// Where cargo puts the libraries of this crate for its tests.
fn libraries() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().to_path_buf()
}

/// A folder of a test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Compiles a program of these tests, with these flags.
    fn compile(&self, name: &str, flags: &[&str]) -> PathBuf {
        let program = self.0.join(name);
        let library = self.0.join("liblinerate_c.so.0");
        std::os::unix::fs::symlink(libraries().join("liblinerate_c.so"), &library).unwrap();
        let output = Command::new("cc")
            .args([
                "-std=c99",
                "-g",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
            ])
            .arg("-I")
            .arg(Path::new(FOLDER).join("include"))
            .args(flags)
            .arg(Path::new(FOLDER).join(format!("tests/{name}.c")))
            .arg(&library)
            .arg("-pthread")
            .arg(format!("-Wl,-rpath,{}", self.0.display()))
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        program
    }

    /// Runs the program that calls every function.
    fn run_calls(&self, program: &Path, name: &str) {
        let values = self.0.join("values");
        std::fs::create_dir(&values).unwrap();
        let job = format!("{name}-{}", std::process::id());
        let texts = run(|rank| {
            let mut command = Command::new(program);
            command.arg(&job).arg(&values).arg(rank.to_string());
            // What the library keeps until the process ends is no leak of the program.
            command.env("ASAN_OPTIONS", "detect_leaks=0");
            command
        });
        for (rank, text) in texts.iter().enumerate() {
            assert_eq!(*text, format!("rank {rank} has called everything\n"));
        }
    }
}

/// A rank of a job, as a launcher starts it.
fn rank_of(program: &Path, job: &str, (rank, ranks): (usize, usize)) -> Command {
    let mut command = Command::new(program);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LINERATE_JOB", format!("{job}-{}", std::process::id()));
    command
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a program on each rank.
fn start(ranks: usize, mut command: impl FnMut(usize) -> Command) -> Vec<Child> {
    let start = |rank| {
        let mut command = command(rank);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    (0..ranks).map(start).collect()
}

/// Runs a program on each rank to its end.
fn run_ranks(ranks: usize, command: impl FnMut(usize) -> Command) -> Vec<Output> {
    let ranks = start(ranks, command).into_iter();
    ranks.map(|rank| rank.wait_with_output().unwrap()).collect()
}

/// Runs a program on all ranks and returns what each has printed.
fn run(command: impl FnMut(usize) -> Command) -> Vec<String> {
    let ended = run_ranks(RANKS, command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let errors: String = ended.iter().map(|ended| text(&ended.stderr)).collect();
    for (rank, ended) in ended.iter().enumerate() {
        let status = ended.status;
        assert!(
            status.success(),
            "rank {rank} ended with {status}:\n{errors}"
        );
    }
    ended.iter().map(|ended| text(&ended.stdout)).collect()
}

#[test]
fn a_program_calls_every_function_also_with_bad_input() {
    let folder = Folder::new("calls");
    let program = folder.compile("calls", &[]);
    folder.run_calls(&program, "calls");
    let source = std::fs::read_to_string(Path::new(FOLDER).join("tests/calls.c")).unwrap();
    let header = std::fs::read_to_string(Path::new(FOLDER).join("include/linerate.h")).unwrap();
    let calls = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']));
    let names = calls.filter_map(|line| line.split_once('(').map(|(head, _)| head));
    let names: Vec<&str> = names
        .filter_map(|head| head.split([' ', '*']).next_back())
        .collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        // The example calls it.
        let is_called = source.contains(&format!("{name}(")) || name == "linerate_init";
        assert!(is_called, "tests/calls.c does not call {name}");
    }
}

#[test]
fn a_program_under_the_sanitizers_of_addresses_and_of_undefined_behaviour_finds_nothing() {
    let folder = Folder::new("sanitized");
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let program = folder.compile("calls", &flags);
    folder.run_calls(&program, "sanitized");
}

/// All ranks of a scenario of `ends.c` are told what it expects.
fn check_end(program: &Path, scenario: &str, ranks: usize) {
    let values = |rank| {
        let mut command = rank_of(program, scenario, (rank, ranks));
        command.arg(scenario).env("LINERATE_TIMEOUT", "4");
        command
    };
    let mut started = start(ranks, values);
    // What is to die or to sleep in it.
    let lost = ["kill", "stop"]
        .contains(&scenario)
        .then(|| started.remove(1));
    for (rank, started) in started.into_iter().enumerate() {
        let ended = started.wait_with_output().unwrap();
        assert!(ended.status.success(), "{scenario}, {rank}: {ended:?}");
    }
    if let Some(mut lost) = lost {
        let _ = lost.kill();
        assert!(!lost.wait().unwrap().success());
    }
}

#[test]
fn ranks_that_disagree_are_told_by_name() {
    let folder = Folder::new("mismatch");
    check_end(&folder.compile("ends", &[]), "mismatch", 2);
}

#[test]
fn ranks_whose_peer_dies_sleeps_or_ends_without_a_word_are_told_who() {
    let folder = Folder::new("lost");
    let program = folder.compile("ends", &[]);
    for scenario in ["kill", "exit", "stop"] {
        check_end(&program, scenario, 3);
    }
}

#[test]
fn what_was_freed_holds_up_nobody_and_threads_may_call_the_same() {
    let folder = Folder::new("freed");
    let program = folder.compile("ends", &[]);
    check_end(&program, "freed", 3);
    check_end(&program, "threads", 3);
}

#[test]
fn an_exchange_in_which_nobody_else_comes_ends_in_time() {
    let folder = Folder::new("alone");
    check_end(&folder.compile("ends", &[]), "alone", 2);
}

#[test]
fn two_rust_libraries_link_into_one_program() {
    let folder = Folder::new("two");
    let prefix = folder.0.join("prefix");
    install(&prefix);
    // Another one has symbols of its own of what the standard library has.
    let other = folder.0.join("other.rs");
    let text = "#[unsafe(no_mangle)] pub extern \"C\" fn other(text: u32) -> u32 {
        std::panic::catch_unwind(|| format!(\"{text}\").len() as u32).unwrap_or(0)
    }";
    std::fs::write(&other, text).unwrap();
    let main = folder.0.join("main.c");
    let text = "#include <linerate.h>
        unsigned other(unsigned text);
        int main(void) {
            linerate_comm comm;
            int32_t status = linerate_init_by_name(0, 1, \"alone with another\", 0, &comm);
            return status + linerate_barrier(comm) + linerate_finalize(comm) + (other(1234) != 4);
        }";
    std::fs::write(&main, text).unwrap();
    let run = |command: &mut Command| {
        let output = command.current_dir(&folder.0).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
    };
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    run(Command::new(rustc).args(["--edition=2024", "--crate-type=staticlib", "other.rs"]));
    let libraries = ["-lgcc_s", "-lpthread", "-lm", "-ldl", "-lc", "-o", "main"];
    run(Command::new("cc")
        .args([
            "main.c",
            "-Iprefix/include",
            "prefix/lib/liblinerate_c.a",
            "libother.a",
        ])
        .args(libraries));
    run(&mut Command::new("./main"));
}

/// Installs the libraries that cargo has built for these tests.
fn install(prefix: &Path) {
    let output = Command::new(Path::new(FOLDER).join("../../tools/install-c"))
        .arg("--prefix")
        .arg(prefix)
        .arg("--from")
        .arg(libraries())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The words of a line of linerate.pc, as pkg-config gives them.
fn words_of(package: &str, line: &str) -> Vec<String> {
    let value = |name: &str| {
        let found = package.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("linerate.pc has no {name}: {package}"))
    };
    let prefix = value("prefix=");
    let words = value(line).replace("${libdir}", &value("libdir=").replace("${prefix}", prefix));
    let words = words.replace(
        "${includedir}",
        &value("includedir=").replace("${prefix}", prefix),
    );
    words.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_examples_are_built_against_what_is_installed_and_run() {
    let folder = Folder::new("installed");
    let prefix = folder.0.join("prefix");
    install(&prefix);
    let package = std::fs::read_to_string(prefix.join("lib/pkgconfig/linerate.pc")).unwrap();
    let archive = prefix.join("lib/liblinerate_c.a");

    let shared = words_of(&package, "Libs: ");
    let mut archived = vec![archive.display().to_string()];
    archived.extend(words_of(&package, "Libs.private: "));
    let flags = words_of(&package, "Cflags: ");
    // Each prints what two ranks make of it.
    for (source, libraries, result) in [
        ("allreduce", &shared, 1),
        ("allreduce", &archived, 1),
        ("overlap", &shared, 2),
        ("elastic", &shared, 25),
    ] {
        let program = folder.0.join(source);
        let output = Command::new("cc")
            .args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(&flags)
            .arg(Path::new(FOLDER).join(format!("examples/{source}.c")))
            .args(libraries)
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap();
        assert!(output.status.success(), "{source}: {output:?}");
        let of = |ranks, rank| rank_of(&program, source, (rank, ranks));
        if source == "elastic" {
            // Five steps of three ranks and five of the two that live.
            let ended = run_ranks(3, |rank| of(3, rank));
            assert!(!ended[2].status.success());
            for (rank, ended) in ended[..2].iter().enumerate() {
                let text = String::from_utf8_lossy(&ended.stdout);
                assert_eq!(text, format!("rank {rank} of 2: {result}\n"), "{ended:?}");
            }
            continue;
        }
        let texts = run(|rank| of(RANKS, rank));
        for (rank, text) in texts.iter().enumerate() {
            assert_eq!(*text, format!("rank {rank} of 2: {result}\n"));
        }
    }

    let output = Command::new("nm")
        .args(["-g", "--defined-only"])
        .arg(&archive)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.rsplit_once(' '));
    let names: Vec<&str> = names.map(|(_, name)| name).collect();
    let is_ours = |name: &&str| name.starts_with("linerate_");
    assert!(names.len() > 40 && names.iter().all(is_ours), "{names:?}");
}
