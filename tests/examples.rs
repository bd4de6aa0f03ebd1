//! Every program of `examples/` runs on several ranks and says what it should.

use linerate_children::{Child, end, free_address};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Where the programs are. `cargo test` has built them, and `cargo test --test examples` has not.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        // Build scripts are run again where these change, and cargo has set them for this test.
        for (name, _) in std::env::vars_os() {
            let bytes = name.as_encoded_bytes();
            if bytes.starts_with(b"CARGO_PKG_") || bytes.starts_with(b"CARGO_MANIFEST_") {
                build.env_remove(name);
            }
        }
        let build = build
            // Of the whole workspace, as most tests are run: of one package the features of
            // dependencies are others, and everything would be built again.
            .args(["build", "--quiet", "--locked", "--workspace", "--examples"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(
            build.is_ok_and(|status| status.success()),
            "the examples do not build"
        );
        let own = std::env::current_exe().expect("the path of this test");
        let profile = own.parent().and_then(Path::parent);
        profile.expect("target/PROFILE/deps").join("examples")
    })
}

/// Starts the ranks of an example, as a launcher would, and waits for them.
fn outputs(example: &str, ranks: u32) -> Vec<Output> {
    let program = folder().join(example);
    let port = free_address().port();
    let start = |rank: u32| {
        let mut command = Command::new(&program);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("LOCAL_WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", "localhost")
            .env("MASTER_PORT", port.to_string())
            .env(
                "TORCHELASTIC_RUN_ID",
                format!("{example}-{}", std::process::id()),
            )
            .env("LINERATE_TIMEOUT", "30");
        Child::start(&mut command)
    };
    end((0..ranks).map(start).collect())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What rank 0 prints, if all ranks end well.
fn run(example: &str, ranks: u32) -> String {
    let outputs = outputs(example, ranks);
    for (rank, output) in outputs.iter().enumerate() {
        assert!(
            output.status.success(),
            "{example}, rank {rank}: {}",
            text(&output.stderr)
        );
    }
    text(&outputs[0].stdout)
}

#[test]
fn training_on_several_ranks_learns_the_digits() {
    let printed = run("train", 3);
    let accuracy = printed
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse::<f32>().ok());
    assert!(accuracy.is_some_and(|percent| percent > 85.0), "{printed}");
    let alone = run("train", 1);
    assert!(alone.contains("359") || alone.contains("360"), "{alone}");
}

#[test]
fn gradients_are_fused_and_averaged() {
    let printed = run("overlap", 2);
    assert!(printed.contains("step 9: 6 tensors"), "{printed}");
}

#[test]
fn a_slow_rank_is_not_waited_for() {
    let printed = run("partial", 4);
    assert!(printed.contains("rank 0: came too late to"), "{printed}");
}

#[test]
fn sparse_sums_leave_nothing_behind() {
    let printed = run("sparse", 2);
    assert!(printed.contains("step 15:"), "{printed}");
    assert!(printed.contains(" messages sent, of "), "{printed}");
}

#[test]
fn survivors_finish_what_a_dead_rank_has_begun() {
    let outputs = outputs("recover", 3);
    assert!(!outputs[2].status.success(), "rank 2 was to die");
    for output in &outputs[..2] {
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(
            text(&output.stdout).contains("of 2: 20 steps"),
            "{}",
            text(&output.stdout)
        );
        assert!(
            text(&output.stderr).contains("rank 2"),
            "{}",
            text(&output.stderr)
        );
    }
}
