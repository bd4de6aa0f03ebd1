//! A Slurm of one host, in a folder of its own: munged, slurmctld and slurmd with ports and sockets
//! that nobody else has.

use super::launchers::search;
use linerate_children::free_address;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Slurm of a busy machine is ready in a few seconds.
const READY_TIME: Duration = Duration::from_secs(60);

/// Ends its daemons when dropped.
pub struct Slurm {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Slurm {
    /// An error says why there can be none here.
    pub fn start(folder: &Path) -> Result<Slurm, String> {
        for program in ["munged", "slurmctld", "slurmd", "srun", "sinfo"] {
            search(program)
                .ok_or_else(|| format!("{program} is not installed (Debian: slurm-wlm, munge)"))?;
        }
        if !rustix::process::geteuid().is_root() {
            return Err("slurmd starts tasks as root only".into());
        }
        // Sockets have short names.
        let short = PathBuf::from(format!("/tmp/linerate-slurm-{}", std::process::id()));
        let _ = fs::remove_dir_all(&short);
        fs::create_dir_all(short.join("spool")).map_err(|e| e.to_string())?;
        fs::create_dir_all(short.join("state")).map_err(|e| e.to_string())?;
        let mut slurm = Slurm {
            folder: short,
            daemons: Vec::new(),
        };
        slurm.write_files()?;
        let path = |name: &str| slurm.folder.join(name).display().to_string();
        let munged = [
            "--force".to_string(),
            "--foreground".into(),
            format!("--socket={}", path("munge.sock")),
            format!("--key-file={}", path("munge.key")),
            format!("--pid-file={}", path("munged.pid")),
            format!("--log-file={}", path("munged.log")),
            format!("--seed-file={}", path("munged.seed")),
        ];
        let config = path("slurm.conf");
        slurm.start_daemon("munged", &munged, folder)?;
        slurm.wait_until("munged listens", |slurm| {
            slurm.folder.join("munge.sock").exists()
        })?;
        slurm.start_daemon(
            "slurmctld",
            &["-D".into(), "-f".into(), config.clone()],
            folder,
        )?;
        slurm.start_daemon("slurmd", &["-D".into(), "-f".into(), config], folder)?;
        slurm.wait_until("the host is idle", |slurm| {
            let output = slurm.command("sinfo").args(["-h", "-o", "%t"]).output();
            output.is_ok_and(|output| output.stdout.starts_with(b"idle\n"))
        })?;
        Ok(slurm)
    }

    /// One of Slurm's commands, for this Slurm.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(search(name).expect("looked for at the start"));
        command.env("SLURM_CONF", self.folder.join("slurm.conf"));
        command
    }

    fn write_files(&self) -> Result<(), String> {
        let text = |e: std::io::Error| e.to_string();
        let mut key = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.folder.join("munge.key"))
            .map_err(text)?;
        let secret = linerate::unstable::bootstrap::fresh_secret().map_err(|e| e.to_string())?;
        key.write_all(secret.as_bytes()).map_err(text)?;
        fs::write(self.folder.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n").map_err(text)?;
        let host = fs::read_to_string("/proc/sys/kernel/hostname").map_err(text)?;
        let (host, folder) = (host.trim(), self.folder.display());
        let ports = [free_address().port(), free_address().port()];
        let config = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmdPort={}\n\
             SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge.sock\n\
             CryptoType=crypto/munge\nStateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool\n\
             SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd.pid\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n\
             SlurmdParameters=config_overrides\nNodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
            ports[0], ports[1]
        );
        fs::write(self.folder.join("slurm.conf"), config).map_err(text)
    }

    fn start_daemon(
        &mut self,
        name: &str,
        arguments: &[String],
        logs: &Path,
    ) -> Result<(), String> {
        let log = fs::File::create(logs.join(format!("{name}.out"))).map_err(|e| e.to_string())?;
        let copy = log.try_clone().map_err(|e| e.to_string())?;
        let program = search(name).ok_or_else(|| format!("{name} is not installed"))?;
        let daemon = Command::new(program)
            .args(arguments)
            .env("SLURM_CONF", self.folder.join("slurm.conf"))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(copy)
            .spawn();
        self.daemons
            .push(daemon.map_err(|e| format!("{name}: {e}"))?);
        Ok(())
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn(&Slurm) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + READY_TIME;
        while !is_so(self) {
            if let Some(ended) = self
                .daemons
                .iter_mut()
                .find_map(|d| d.try_wait().ok().flatten())
            {
                return Err(format!("a daemon of Slurm ended before {what}: {ended}"));
            }
            if Instant::now() > deadline {
                return Err(format!("Slurm: {what} did not happen in {READY_TIME:?}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            // Asked first, so that it ends what it has started.
            let pid = rustix::process::Pid::from_child(daemon);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(10);
            while daemon.try_wait().is_ok_and(|ended| ended.is_none()) {
                if Instant::now() > deadline {
                    let _ = daemon.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
