//! Where rank 0 listens, and how the other ranks learn it: [`listen`] and [`Finder`].

use super::credentials::Credentials;
use super::env::{Place, Rendezvous};
use super::interfaces::{self, Interface};
use super::link::is_loopback;
use super::pmi;
use super::random::nonce;
use super::secret_socket::SecretSocket;
use crate::error::{Error, Result};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Addresses that are told to others, at most: a line of PMI has to hold them.
const ADDRESSES_MAX: usize = 8;
/// The key under which launchers keep them.
const KEY: &str = "linerate-rank0";
/// A file of addresses is shorter.
const FILE_BYTES_MAX: u64 = 4096;
/// What rank 0 tells instead of addresses.
const FAILED: &str = "failed";

/// Rank 0's listeners, and why there, for people.
pub(super) struct Listening {
    pub sockets: Vec<TcpListener>,
    pub addresses: Vec<SocketAddr>,
    pub why: String,
    /// Serves the secret of a job that was given none.
    pub secret_socket: Option<SecretSocket>,
    /// Removed when the ranks have met.
    pub file: Option<PublishedFile>,
}

/// A file that says where rank 0 is, for as long as it listens.
#[derive(Debug)]
pub(super) struct PublishedFile(PathBuf);

impl Drop for PublishedFile {
    fn drop(&mut self) {
        // A file that is left names a port where nobody answers; the next rank 0 replaces it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Rank 0 listens as its rendezvous wants, and tells the others.
pub(super) fn listen(
    place: &Place,
    credentials: &Credentials,
    named: Option<&[Interface]>,
    timeout: Duration,
) -> Result<Listening> {
    let listening = listen_only(place, credentials, named).and_then(|mut listening| {
        // It is opened before the others hear of the port, which is the same on all addresses.
        if let (None, Some(address)) = (credentials.key(), listening.addresses.first()) {
            listening.secret_socket = Some(SecretSocket::open(address.port(), credentials)?);
        }
        Ok(listening)
    });
    let text = match &listening {
        Ok(listening) => emit_addresses(&listening.addresses),
        // The others wait for a word in the launcher's daemons, whatever it is.
        Err(_) => FAILED.into(),
    };
    match &place.rendezvous {
        Rendezvous::Pmix => drop(share_by_pmix(Some(&text))?),
        Rendezvous::Pmi(descriptor) => drop(pmi::share(*descriptor, KEY, Some(&text), timeout)?),
        _ => {}
    }
    let mut listening = listening?;
    if let Rendezvous::Folder(folder) = &place.rendezvous {
        listening.file = Some(publish_file(folder, place, &text)?);
    }
    Ok(listening)
}

/// Rank 0 listens as its rendezvous wants.
pub(super) fn listen_only(
    place: &Place,
    credentials: &Credentials,
    named: Option<&[Interface]>,
) -> Result<Listening> {
    Ok(match &place.rendezvous {
        Rendezvous::Tcp { host, port } => listen_on_host(host, &[*port], credentials)?,
        Rendezvous::Ports(_) if is_alone(place, credentials) => listen_on(
            &[Ipv4Addr::LOCALHOST.into()],
            &place.ports(),
            "all ranks are on this host",
        )?,
        Rendezvous::Ports(host) => listen_on_host(host, &place.ports(), credentials)?,
        _ if is_alone(place, credentials) && named.is_none() => listen_on(
            &[Ipv4Addr::LOCALHOST.into()],
            &[0],
            "only this host is served",
        )?,
        _ => listen_on_interfaces(named, credentials)?,
    })
}

/// Whether no rank of another host can come: there is none, or, where that is not known, none would
/// be admitted.
fn is_alone(place: &Place, credentials: &Credentials) -> bool {
    let is_address_given = matches!(place.rendezvous, Rendezvous::Ports(_));
    let is_unknown = place.local_ranks.is_none() && !is_address_given;
    place.is_on_one_host() || (is_unknown && !credentials.is_open)
}

/// How another rank learns where rank 0 listens.
pub(super) enum Finder {
    /// Known from the start.
    Known(Vec<SocketAddr>),
    /// A name and ports, looked up again in each round: names of pods appear late.
    Named(String, Vec<u16>),
    /// A file, read again in each round.
    File(PathBuf),
}

impl Finder {
    /// The finder of this place. Where the launcher's daemons are asked, it waits until rank 0 has
    /// told them.
    pub fn new(place: &Place, timeout: Duration) -> Result<Finder> {
        Ok(match &place.rendezvous {
            Rendezvous::Tcp { host, port } => Finder::Named(host.clone(), vec![*port]),
            Rendezvous::Ports(_) if place.is_on_one_host() => {
                Finder::Named(Ipv4Addr::LOCALHOST.to_string(), place.ports())
            }
            Rendezvous::Ports(host) => Finder::Named(host.clone(), place.ports()),
            Rendezvous::Folder(folder) => Finder::File(path_in(folder, place)),
            Rendezvous::Pmix => Finder::Known(parse_addresses(&share_by_pmix(None)?)?),
            Rendezvous::Pmi(descriptor) => {
                let text = pmi::share(*descriptor, KEY, None, timeout)?;
                Finder::Known(parse_addresses(&text)?)
            }
            Rendezvous::Host => unreachable!("ranks of one host need no address"),
        })
    }

    /// The addresses to try now, those first to which a route is known.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let mut addresses = match self {
            Finder::Known(addresses) => addresses.clone(),
            Finder::Named(host, ports) => {
                let resolved = resolve(host, ports);
                resolved.unwrap_or_default()
            }
            Finder::File(path) => match read_file(path) {
                Ok(text) => parse_addresses(&text).unwrap_or_default(),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(e) => return Err(Error::os(format!("reading {}", path.display()), e)),
            },
        };
        addresses.sort_by_key(|address| interfaces::source_for(address.ip()).is_none());
        Ok(addresses)
    }
}

fn resolve(host: &str, ports: &[u16]) -> std::io::Result<Vec<SocketAddr>> {
    let ips: Vec<IpAddr> = (host, 0)
        .to_socket_addrs()?
        .map(|address| address.ip())
        .collect();
    let pairs = ports
        .iter()
        .flat_map(|&port| ips.iter().map(move |&ip| SocketAddr::new(ip, port)));
    let mut addresses: Vec<SocketAddr> = pairs.collect();
    addresses.dedup();
    Ok(addresses)
}

/// Listens on the addresses of this host that a name has.
fn listen_on_host(host: &str, ports: &[u16], credentials: &Credentials) -> Result<Listening> {
    let found = resolve(host, &[0]).map_err(|e| {
        Error::Bootstrap(format!(
            "rank 0 cannot find '{host}', where it is to listen: {e}; name an address of its host"
        ))
    })?;
    let own: Vec<IpAddr> = interfaces::list()?.into_iter().map(|i| i.ip).collect();
    let is_own = |ip: &IpAddr| own.contains(ip) || is_loopback(*ip);
    let mut ips: Vec<IpAddr> = found.iter().map(SocketAddr::ip).filter(is_own).collect();
    ips.dedup();
    let mut why = format!("'{host}' names this host");
    if ips.is_empty() {
        let found: Vec<String> = found.iter().map(|a| a.ip().to_string()).collect();
        let Some(any) = credentials
            .is_open
            .then_some(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        else {
            return Err(Error::Bootstrap(format!(
                "'{host}' is {}, and rank 0 runs on a host with other addresses ({own:?}): name an address of rank 0's host, or, if another host passes connections on to this one, set LINERATE_SECRET",
                found.join(", ")
            )));
        };
        why = format!(
            "'{host}' ({}) is no address of this host: any of its addresses",
            found.join(", ")
        );
        ips = vec![any];
    }
    for &ip in &ips {
        credentials.check_may_serve(ip)?;
    }
    listen_on(&ips, ports, &why)
}

/// Listens on the addresses of these interfaces, or of all but loopback.
fn listen_on_interfaces(
    named: Option<&[Interface]>,
    credentials: &Credentials,
) -> Result<Listening> {
    let all = interfaces::list()?;
    let (found, why) = match named {
        Some(named) => (named.to_vec(), "LINERATE_IFNAME names them"),
        None => (all, "whichever of them the others have a route to"),
    };
    // Loopback is used only where there is nothing else, because other hosts have one too.
    let (near, mut far): (Vec<_>, Vec<_>) = found.into_iter().partition(|i| is_loopback(i.ip));
    if far.is_empty() {
        far = near;
    }
    // The one that the default route leaves by is most likely the one to be reached at.
    let usual = interfaces::source_for(Ipv4Addr::new(192, 0, 2, 1).into());
    far.sort_by_key(|interface| (Some(interface.ip) != usual, interface.ip.is_ipv6()));
    far.truncate(ADDRESSES_MAX);
    let ips: Vec<IpAddr> = far.iter().map(|interface| interface.ip).collect();
    for &ip in &ips {
        credentials.check_may_serve(ip)?;
    }
    listen_on(&ips, &[0], why)
}

/// Listens on all of these addresses, on the first of these ports that is free on all.
fn listen_on(ips: &[IpAddr], ports: &[u16], why: &str) -> Result<Listening> {
    let mut taken = Vec::new();
    for &port in ports {
        match ips
            .iter()
            .map(|&ip| TcpListener::bind((ip, port)))
            .collect()
        {
            Ok(sockets) => return describe(sockets, why),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::ADDRINUSE) => taken.push(port),
            Err(e) => return Err(Error::os(format!("listening on port {port} of {ips:?}"), e)),
        }
    }
    Err(Error::Bootstrap(format!(
        "rank 0 cannot listen on {ips:?}: port {taken:?} is taken, by another job or program (`ss -tlnp` says which); name a free one, LINERATE_RENDEZVOUS=tcp://HOST:PORT"
    )))
}

fn describe(sockets: Vec<TcpListener>, why: &str) -> Result<Listening> {
    let addresses: std::io::Result<Vec<_>> = sockets.iter().map(TcpListener::local_addr).collect();
    Ok(Listening {
        addresses: addresses.map_err(|e| Error::os("reading the port of a listening socket", e))?,
        sockets,
        why: why.into(),
        secret_socket: None,
        file: None,
    })
}

fn share_by_pmix(own: Option<&str>) -> Result<String> {
    let library = std::env::var_os("LINERATE_PMIX_LIB");
    let shared =
        linerate_pmi_sys::Pmix::open(library.as_deref()).and_then(|pmix| pmix.share(KEY, own));
    shared.map_err(|why| {
        Error::Bootstrap(format!(
            "the addresses of this Open MPI job are exchanged by PMIx, which does not work here: {why}; install it (Debian: libpmix2), name it in LINERATE_PMIX_LIB, or set LINERATE_RENDEZVOUS to tcp://HOST:PORT or file://FOLDER"
        ))
    })
}

fn path_in(folder: &Path, place: &Place) -> PathBuf {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = (place.job.chars().map(|c| if is_plain(c) { c } else { '_' }))
        .take(100)
        .collect();
    folder.join(format!("linerate-{name}-{}.addresses", place.epoch))
}

/// Writes a new file beside the final one and renames it, so that readers see a whole file or none.
/// Others may write to the folder, so the new file has a name that cannot be guessed.
fn publish_file(folder: &Path, place: &Place, text: &str) -> Result<PublishedFile> {
    let path = path_in(folder, place);
    let beside = path.with_extension(format!("{:016x}", nonce()?));
    let write = || -> std::io::Result<()> {
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)
    };
    write().map_err(|e| {
        let _ = std::fs::remove_file(&beside);
        Error::os(format!("writing {} for the other ranks", path.display()), e)
    })?;
    Ok(PublishedFile(path))
}

/// Reads a file. Anything else that another user may have put in its place is refused: to open a
/// FIFO would block.
fn read_file(path: &Path) -> std::io::Result<String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let is_link = |e: &std::io::Error| e.raw_os_error() == Some(libc::ELOOP);
    let planted = || {
        std::io::Error::other(
            "it is no file that rank 0 has written, somebody else has put it there: name a folder that only this user may write to",
        )
    };
    let file = file.map_err(|e| if is_link(&e) { planted() } else { e })?;
    if !file.metadata()?.is_file() {
        return Err(planted());
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

pub(super) fn emit_addresses(addresses: &[SocketAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    texts.join(",")
}

pub(super) fn parse_addresses(text: &str) -> Result<Vec<SocketAddr>> {
    if text == FAILED {
        let text = "rank 0 could not listen for the others; see what it printed";
        return Err(Error::Bootstrap(text.into()));
    }
    let bad = || Error::Malformed(format!("rank 0's addresses: '{text}'"));
    let addresses = text
        .trim()
        .split(',')
        .map(|word| word.parse().map_err(|_| bad()));
    let addresses: Vec<SocketAddr> = addresses.collect::<Result<_>>()?;
    match addresses.len() <= ADDRESSES_MAX {
        true => Ok(addresses),
        false => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_and_anything_else_is_refused() {
        let addresses = [
            "10.0.0.1:4".parse().unwrap(),
            "[fd00::1]:65535".parse().unwrap(),
        ];
        assert_eq!(
            parse_addresses(&emit_addresses(&addresses)).unwrap(),
            addresses
        );
        for bad in ["", "10.0.0.1", "a:1", "1.2.3.4:5,", &"1.2.3.4:5,".repeat(9)] {
            assert!(parse_addresses(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_is_there_as_long_as_rank_0_listens() {
        let folder = std::env::temp_dir().join(format!("linerate-publish-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let place = Place::named(1, 2, &format!("file://{}", folder.display())).unwrap();
        let finder = Finder::new(&place, Duration::from_secs(1)).unwrap();
        assert!(finder.addresses().unwrap().is_empty());
        let file = publish_file(&folder, &place, "127.0.0.1:4").unwrap();
        assert_eq!(
            finder.addresses().unwrap(),
            ["127.0.0.1:4".parse().unwrap()]
        );
        drop(file);
        assert!(finder.addresses().unwrap().is_empty());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
        let text = publish_file(&folder, &place, "x").unwrap_err().to_string();
        assert!(text.contains("linerate-publish"), "{text}");
    }

    #[test]
    fn what_others_plant_in_the_folder_is_neither_followed_nor_waited_for() {
        let folder = std::env::temp_dir().join(format!("linerate-planted-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let place = Place::named(1, 2, &format!("file://{}", folder.display())).unwrap();
        let finder = Finder::new(&place, Duration::from_secs(1)).unwrap();
        let path = path_in(&folder, &place);
        let victim = folder.join("victim");
        std::fs::write(&victim, "127.0.0.1:9").unwrap();
        let check = || {
            let text = finder.addresses().unwrap_err().to_string();
            assert!(
                text.contains("somebody else") && text.contains("planted"),
                "{text}"
            );
            let file = publish_file(&folder, &place, "127.0.0.1:4").unwrap();
            let found = finder.addresses().unwrap();
            assert_eq!(found, ["127.0.0.1:4".parse().unwrap()]);
            drop(file);
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "127.0.0.1:9");
        };
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        check();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        check();
        // A link with a name that could be guessed is not written through.
        let beside = path.with_extension(std::process::id().to_string());
        std::os::unix::fs::symlink(&victim, beside).unwrap();
        drop(publish_file(&folder, &place, "127.0.0.1:4").unwrap());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "127.0.0.1:9");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_first_free_port_is_taken_and_none_says_which_were_tried() {
        let ip: IpAddr = Ipv4Addr::LOCALHOST.into();
        let taken = TcpListener::bind((ip, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let found = listen_on(&[ip], &[port, 0], "a test").unwrap();
        assert_ne!(found.addresses[0].port(), port);
        let text = listen_on(&[ip], &[port], "a test")
            .err()
            .unwrap()
            .to_string();
        assert!(
            text.contains(&port.to_string()) && text.contains("taken"),
            "{text}"
        );
    }
}
