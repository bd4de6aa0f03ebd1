//! The client's side of PMI-1, as MPICH's hydra speaks it over a descriptor that it leaves to each
//! process: lines of `key=value` words.
//!
//! Source: MPICH, `src/pmi/src/pmi_v1.c` and `pmi_wire.c`.

use crate::error::{Error, Result};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest line of the protocol.
const LINE_BYTES_MAX: usize = 1024;

/// Gives all ranks the text that rank 0 passes for `key`, one word; the others pass none.
/// Collective: returns when all have called it. Ends the conversation with the launcher, which ends
/// the whole job if a process that has spoken exits without that.
pub(super) fn share(
    descriptor: i32,
    key: &str,
    own: Option<&str>,
    timeout: Duration,
) -> Result<String> {
    let stream = linerate_pmi_sys::inherited_stream(descriptor).ok_or_else(|| {
        Error::Bootstrap(format!(
            "PMI_FD is {descriptor}, and this process has no such descriptor: whatever started it between mpiexec and here has closed it; set LINERATE_RENDEZVOUS to tcp://HOST:PORT or file://FOLDER"
        ))
    })?;
    let what =
        |e: std::io::Error| Error::os(format!("speaking PMI over descriptor {descriptor}"), e);
    stream.set_nonblocking(false).map_err(what)?;
    stream.set_read_timeout(Some(timeout)).map_err(what)?;
    let mut client = Client(stream);
    client.ask(
        "cmd=init pmi_version=1 pmi_subversion=1",
        "response_to_init",
    )?;
    let space = client.ask("cmd=get_my_kvsname", "my_kvsname")?;
    let space = word(&space, "kvsname")
        .ok_or_else(|| bad("no kvsname", &space))?
        .to_string();
    if let Some(text) = own {
        let put = format!("cmd=put kvsname={space} key={key} value={text}");
        client.ask(&put, "put_result")?;
    }
    client.ask("cmd=barrier_in", "barrier_out")?;
    let got = client.ask(&format!("cmd=get kvsname={space} key={key}"), "get_result")?;
    let text = word(&got, "value")
        .ok_or_else(|| bad("no value", &got))?
        .to_string();
    client.ask("cmd=finalize", "finalize_ack")?;
    Ok(text)
}

struct Client(UnixStream);

impl Client {
    fn ask(&mut self, line: &str, answer: &str) -> Result<String> {
        let failed = |e: std::io::Error| Error::os(format!("asking mpiexec '{line}'"), e);
        if line.len() >= LINE_BYTES_MAX {
            return Err(bad("longer than the protocol allows", line));
        }
        self.0
            .write_all(format!("{line}\n").as_bytes())
            .map_err(failed)?;
        let mut got = Vec::new();
        // One byte at a time: what follows belongs to the next user of PMI in this process.
        loop {
            let mut byte = [0];
            self.0.read_exact(&mut byte).map_err(failed)?;
            match byte[0] {
                b'\n' => break,
                _ if got.len() >= LINE_BYTES_MAX => return Err(bad("a line without end", line)),
                byte => got.push(byte),
            }
        }
        let got = String::from_utf8_lossy(&got).into_owned();
        let is_good =
            word(&got, "cmd") == Some(answer) && word(&got, "rc").is_none_or(|rc| rc == "0");
        match is_good {
            true => Ok(got),
            false => Err(bad(
                &format!("'{answer}' was expected after '{line}'"),
                &got,
            )),
        }
    }
}

fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn bad(what: &str, line: &str) -> Error {
    Error::Malformed(format!("PMI: {what}: '{line}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// Answers like hydra; gives the lines that it got.
    fn serve(stream: UnixStream, answers: &'static [&'static str]) -> Vec<String> {
        use std::io::{BufRead, BufReader};
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut got = Vec::new();
        for answer in answers {
            let Some(Ok(line)) = lines.next() else { break };
            got.push(line);
            writeln!(&stream, "{answer}").unwrap();
        }
        got
    }

    fn ask(own: Option<&str>, answers: &'static [&'static str]) -> (Result<String>, Vec<String>) {
        let (here, there) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || serve(there, answers));
        let result = share(here.as_raw_fd(), "linerate", own, Duration::from_secs(20));
        drop(here);
        (result, server.join().unwrap())
    }

    #[test]
    fn rank_0_puts_and_everyone_gets() {
        let (got, lines) = ask(
            Some("10.0.0.1:4"),
            &[
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
                "cmd=my_kvsname kvsname=kvs_1_0",
                "cmd=put_result rc=0 msg=success",
                "cmd=barrier_out",
                "cmd=get_result rc=0 msg=success value=10.0.0.1:4",
                "cmd=finalize_ack",
            ],
        );
        assert_eq!(got.unwrap(), "10.0.0.1:4");
        assert_eq!(
            lines[2],
            "cmd=put kvsname=kvs_1_0 key=linerate value=10.0.0.1:4"
        );
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn an_answer_that_says_no_is_told() {
        let (got, _) = ask(None, &["cmd=response_to_init rc=-1"]);
        let text = got.unwrap_err().to_string();
        assert!(
            text.contains("rc=-1") && text.contains("response_to_init"),
            "{text}"
        );
        let text = share(-1, "k", None, Duration::from_secs(1))
            .unwrap_err()
            .to_string();
        assert!(text.contains("PMI_FD") && text.contains("tcp://"), "{text}");
    }
}
