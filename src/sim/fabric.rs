//! [`Fabric`]: hosts with GPUs and NICs, and the switches between them, as plain data.

use super::{Hosts, Link, SimOptions, SlowNic, Tier};
use crate::collective::{Request, candidates_by_messages};
use crate::cost::{Additions, Model};
use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::types::{Collective, Rank};
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::str::FromStr;

/// A fabric. All its hosts are alike, but for NICs and ranks that are named as slow. Rank `r` is a
/// GPU of host `r / gpus_per_host`.
///
/// ```
/// use linerate::Collective;
/// use linerate::sim::{Fabric, FabricCall};
/// let fabric = Fabric::named("8x400g")?;
/// let call = FabricCall::new(Collective::AllReduce, 64, 64 << 20);
/// let times = fabric.run(&call)?;
/// assert_eq!(times.algorithm, "hierarchical");
/// assert!(times.ns > 400_000, "{} bytes in {} ns", call.bytes, times.ns);
/// # Ok::<(), linerate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fabric {
    /// Its name, for people.
    pub name: String,
    /// Hosts that it has, at most; none: as many as the ranks need.
    pub hosts: Option<u32>,
    /// GPUs of a host, each of which is a rank.
    pub gpus_per_host: u32,
    /// NICs of a host, which its GPUs share evenly; at most as many as there are GPUs.
    pub nics_per_host: u32,
    /// Gbit/s of a NIC in each direction.
    pub nic_gbit: f64,
    /// Time that a message holds a NIC besides its bytes, nanoseconds.
    pub nic_message_ns: u64,
    /// From the first byte leaving a rank to the first byte reaching one of another host, without
    /// the time of [`Fabric::tiers`], nanoseconds.
    pub latency_ns: u64,
    /// Gbit/s of a GPU to others of its host, in each direction.
    pub inside_gbit: f64,
    /// Time that a message holds that link besides its bytes, nanoseconds.
    pub inside_message_ns: u64,
    /// From a rank to another one of its host, nanoseconds.
    pub inside_latency_ns: u64,
    /// The switches between hosts, from the hosts up; none: the network between two NICs is never
    /// the bottleneck.
    pub tiers: Vec<Tier>,
    /// The share of NICs and of trunks between switches that other jobs use, from 0 to below 1.
    pub background: f64,
    /// NICs that are slower than the others.
    pub slow_nics: Vec<SlowNic>,
    /// Ranks that are slower than the others.
    pub slow_ranks: Vec<SlowRank>,
    /// How long ranks take for what they do themselves.
    pub work: LocalWork,
}

/// A rank whose local work takes longer than that of the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowRank {
    /// Which.
    pub rank: Rank,
    /// How many times as long, at least 1.
    pub times: f64,
}

/// How long a rank takes for what it does itself; it does one thing after the other. As default
/// nothing takes time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalWork {
    /// Adding a vector to another.
    pub additions: AddTime,
    /// GB/s at which it copies; none: copies take no time.
    pub copy_gbytes: Option<f64>,
    /// Posting a message or a receive, nanoseconds.
    pub message_ns: u64,
}

/// How long additions take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddTime {
    /// No time.
    #[default]
    None,
    /// As measured on one V100: see [`Additions::v100`](crate::whatif::Additions::v100).
    V100,
    /// This many GB/s of one vector.
    Gbytes(f64),
}

impl AddTime {
    fn additions(self) -> Result<Additions> {
        match self {
            AddTime::None => Ok(Additions::free()),
            AddTime::V100 => Ok(Additions::v100()),
            AddTime::Gbytes(rate) => Additions::measured(vec![(0.0, 0.0), (1e9, 1.0 / rate)]),
        }
    }
}

impl FromStr for Fabric {
    type Err = Error;

    /// The fabric of [`Fabric::named`], or one in JSON: an object with some of the fields, of which
    /// the others are as by default.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: it is neither; the text names the place in the JSON.
    fn from_str(text: &str) -> Result<Fabric> {
        match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text)
                .map_err(|cause| Error::invalid(format!("a fabric in JSON: {cause}"))),
            false => Fabric::named(text),
        }
    }
}

impl Default for Fabric {
    /// `100g`: one GPU and one NIC per host, 2 us from rank to rank, switches that delay nothing.
    fn default() -> Fabric {
        let (far, near) = (Link::ETHERNET_100G, Link::HOST);
        Fabric {
            name: "100g".into(),
            hosts: None,
            gpus_per_host: 1,
            nics_per_host: 1,
            nic_gbit: 100.0,
            nic_message_ns: far.per_message_ns,
            latency_ns: far.latency_ns,
            inside_gbit: near.bytes_per_second as f64 * 8e-9,
            inside_message_ns: near.per_message_ns,
            inside_latency_ns: near.latency_ns,
            tiers: Vec::new(),
            background: 0.0,
            slow_nics: Vec::new(),
            slow_ranks: Vec::new(),
            work: LocalWork::default(),
        }
    }
}

impl Fabric {
    /// The names of those that are built in.
    pub const NAMES: [&str; 6] = ["p3dn", "100g", "200g", "400g", "8x400g", "oversubscribed"];

    /// The fabric that is built in under this name. Rates are those of the data sheets; times from
    /// rank to rank are assumed.
    ///
    /// | name | a host | between hosts |
    /// |---|---|---|
    /// | `p3dn` | 8 V100, NVLink of 150 GB/s; additions as measured on a V100 | a NIC of 100 Gbit/s, 15 us |
    /// | `100g`, `200g`, `400g` | 1 GPU | a NIC of that rate, 2 us |
    /// | `8x400g` | 8 GPUs, NVLink of 450 GB/s | 8 NICs of 400 Gbit/s, 2 us, and leaf switches of 16 hosts |
    /// | `oversubscribed` | as `8x400g` | as `8x400g`, with trunks of a quarter of the NICs |
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is none of this name; the text lists those that are.
    pub fn named(name: &str) -> Result<Fabric> {
        let plain = |nic_gbit| Fabric {
            name: name.into(),
            nic_gbit,
            ..Fabric::default()
        };
        let pod = |oversubscription| Fabric {
            gpus_per_host: 8,
            nics_per_host: 8,
            inside_gbit: 3600.0,
            inside_latency_ns: 1_000,
            tiers: vec![Tier {
                hosts: 16,
                oversubscription,
                hop_ns: 300,
            }],
            ..plain(400.0)
        };
        match name {
            "100g" => Ok(plain(100.0)),
            "200g" => Ok(plain(200.0)),
            "400g" => Ok(plain(400.0)),
            "8x400g" => Ok(pod(1.0)),
            "oversubscribed" => Ok(pod(4.0)),
            "p3dn" => Ok(Fabric {
                gpus_per_host: 8,
                latency_ns: 15_000,
                inside_gbit: 1200.0,
                inside_latency_ns: 2_000,
                work: LocalWork {
                    additions: AddTime::V100,
                    ..LocalWork::default()
                },
                ..plain(100.0)
            }),
            _ => {
                let names = Fabric::NAMES.join(", ");
                Err(Error::invalid(format!(
                    "fabric '{name}' is not known; built in are {names}"
                )))
            }
        }
    }

    /// This network for a [`Simulation`](crate::Simulation), where local work takes no time.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a field out of its range, or more ranks than the fabric has; the
    /// text names the field, its value and what is allowed.
    pub fn options(&self, ranks: u32, seed: u64) -> Result<SimOptions> {
        self.check(ranks)?;
        let free = 1.0 - self.background;
        let bytes_per_second = |gbit: f64| ((gbit * 1e9 / 8.0) as u64).max(1);
        let network = Link {
            latency_ns: self.latency_ns,
            bytes_per_second: bytes_per_second(self.nic_gbit * free),
            per_message_ns: self.nic_message_ns,
            jitter_ns: 0,
        };
        let inside = Link {
            latency_ns: self.inside_latency_ns,
            bytes_per_second: bytes_per_second(self.inside_gbit),
            per_message_ns: self.inside_message_ns,
            jitter_ns: 0,
        };
        let options = SimOptions {
            network,
            hosts: (self.gpus_per_host > 1).then_some(Hosts {
                ranks_per_host: self.gpus_per_host,
                nics: self.nics_per_host,
                link: inside,
            }),
            tiers: self.tiers.clone(),
            slow_nics: self.slow_nics.clone(),
            ..SimOptions::new(ranks, seed)
        };
        options.check()?;
        Ok(options)
    }

    /// Every algorithm of a collective that can run here, with the time that the prices of messages
    /// and local work predict for `bytes` bytes (see [`FabricCall::bytes`](super::FabricCall)), in
    /// nanoseconds, the cheapest first.
    ///
    /// # Errors
    /// As [`Fabric::options`]; a collective without algorithms.
    pub fn candidates(
        &self,
        collective: Collective,
        ranks: u32,
        bytes: u64,
        chunk_bytes: u64,
    ) -> Result<Vec<(&'static str, f64)>> {
        let options = self.options(ranks, 0)?;
        let request = self.request(collective, &options, 0, 0);
        request.check()?;
        let part = match collective.has_parts() {
            true => bytes / u64::from(ranks),
            false => bytes,
        };
        let model = self.model(&options)?;
        let found = candidates_by_messages(&request, part, &model, chunk_bytes);
        let mut found: Vec<_> = (found.iter())
            .map(|candidate| (candidate.algorithm.name, candidate.predicted_ns))
            .collect();
        found.sort_by(|a, b| a.1.total_cmp(&b.1));
        match found.is_empty() {
            true => Err(Error::invalid(format!(
                "{collective} has no algorithm that a fabric could run"
            ))),
            false => Ok(found),
        }
    }

    fn model(&self, options: &SimOptions) -> Result<Model> {
        let far = options.network;
        // The way through the tiers that most pairs of hosts have.
        let tiers = (self.tiers.iter()).take_while(|tier| tier.hosts < options.host_count());
        let hops_ns: u64 = tiers.map(|tier| 2 * tier.hop_ns).sum();
        let latency_ns = far.latency_ns + far.per_message_ns + hops_ns;
        let rate = far.bytes_per_second as f64 / options.ranks_per_nic();
        let mut model = Model::network(latency_ns as f64, far.per_message_ns as f64, rate);
        if let Some(hosts) = options.hosts {
            let near = hosts.link;
            let message_ns = (near.latency_ns + near.per_message_ns) as f64;
            model = model.with_local_messages(message_ns, near.bytes_per_second as f64);
        }
        // A sum reads two vectors and writes one.
        let long = 64e6;
        let reduced_ns = self.work.additions.additions()?.seconds(long) * 1e9 / long / 3.0;
        let copied_ns = self.work.copy_gbytes.map_or(0.0, |rate| 1.0 / rate);
        Ok(model.with_local_work(reduced_ns, copied_ns))
    }

    /// What a schedule is built for on a rank. What PyTorch does in place is in place here.
    pub(super) fn request(
        &self,
        collective: Collective,
        options: &SimOptions,
        rank: Rank,
        root: Rank,
    ) -> Request {
        Request {
            collective,
            rank,
            ranks: options.ranks,
            root,
            in_place: matches!(
                collective,
                Collective::AllReduce | Collective::Broadcast | Collective::Reduce
            ),
            premultiply: false,
            hosts: (0..options.ranks).map(|r| options.host_of(r)).collect(),
            maps_host: false,
            is_mapped: false,
        }
    }

    pub(super) fn additions(&self) -> Result<Additions> {
        self.work.additions.additions()
    }

    fn check(&self, ranks: u32) -> Result<()> {
        let refuse = |name: &str, value: &dyn Display, allowed: &str| {
            let fabric = &self.name;
            Err(Error::invalid(format!(
                "fabric {fabric}: {name} is {value}: {allowed}"
            )))
        };
        let (gpus, nics) = (self.gpus_per_host, self.nics_per_host);
        if !(1..=RANKS_MAX).contains(&gpus) {
            return refuse("gpus_per_host", &gpus, &format!("1 to {RANKS_MAX}"));
        }
        if !(1..=gpus).contains(&nics) {
            return refuse(
                "nics_per_host",
                &nics,
                &format!("1 to {gpus}, the GPUs of a host"),
            );
        }
        let room = self.hosts.map_or(u64::from(RANKS_MAX), |hosts| {
            u64::from(hosts) * u64::from(gpus)
        });
        if u64::from(ranks) > room {
            let allowed = format!("it has {room} GPUs at most");
            return refuse("ranks", &ranks, &allowed);
        }
        for (name, gbit) in [
            ("nic_gbit", self.nic_gbit),
            ("inside_gbit", self.inside_gbit),
        ] {
            if !(0.001..=1e6).contains(&gbit) {
                return refuse(name, &gbit, "0.001 to 1e6");
            }
        }
        if !(0.0..1.0).contains(&self.background) {
            return refuse("background", &self.background, "0 to below 1");
        }
        for (at, slow) in self.slow_ranks.iter().enumerate() {
            let name = |field| format!("slow_ranks[{at}].{field}");
            if slow.rank >= ranks {
                let allowed = format!("below {ranks}, the number of ranks");
                return refuse(&name("rank"), &slow.rank, &allowed);
            }
            if !(1.0..=1e6).contains(&slow.times) {
                return refuse(&name("times"), &slow.times, "1 to 1e6");
            }
        }
        let rates = [
            ("work.copy_gbytes", self.work.copy_gbytes),
            (
                "work.additions",
                match self.work.additions {
                    AddTime::Gbytes(rate) => Some(rate),
                    AddTime::None | AddTime::V100 => None,
                },
            ),
        ];
        for (name, rate) in rates {
            if rate.is_some_and(|rate| !(1e-3..=1e6).contains(&rate)) {
                return refuse(name, &rate.unwrap_or_default(), "1e-3 to 1e6 GB/s");
            }
        }
        if self.work.message_ns > 1_000_000_000 {
            return refuse(
                "work.message_ns",
                &self.work.message_ns,
                "at most 1e9 (a second)",
            );
        }
        Ok(())
    }
}
