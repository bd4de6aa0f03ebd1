//! The modelled network of `--transport sim`: [`LinkArgs`] of the command line, [`Link`] with
//! defaults.

use clap::Args;
use serde::Serialize;

/// Above it a simulation takes minutes a row.
const RANKS_MAX: u32 = 1024;
/// Gbit/s and us where the arguments say nothing: those of `linerate::sim::Link::ETHERNET_100G`.
const GBIT_DEFAULT: f64 = 100.0;
const US_DEFAULT: f64 = 2.0;

/// What the arguments say of the network.
#[derive(Args, Clone, Debug, Default)]
pub struct LinkArgs {
    /// Rate of each rank's port in --transport sim; default 100
    #[arg(long, value_name = "GBIT/S", value_parser = parse_gbit)]
    pub link_gbit: Option<f64>,

    /// Time from rank to rank in --transport sim; default 2
    #[arg(long, value_name = "US", value_parser = parse_latency)]
    pub link_us: Option<f64>,
}

/// The network of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Rate of each rank's port in each direction, Gbit/s.
    pub gbit: f64,
    /// From rank to rank, us.
    pub latency_us: f64,
}

impl LinkArgs {
    /// The network, for this transport; `None`: it is a real one, and nothing is modelled.
    pub fn link(
        &self,
        transport: &str,
        ranks: u32,
        is_launched: bool,
    ) -> Result<Option<Link>, String> {
        if transport != "sim" {
            return match self.link_gbit.or(self.link_us) {
                Some(_) => {
                    Err("--link-gbit and --link-us describe the network of --transport sim".into())
                }
                None => Ok(None),
            };
        }
        if is_launched {
            return Err(
                "--transport sim has all its ranks in one process: without a launcher, with --ranks"
                    .into(),
            );
        }
        if ranks > RANKS_MAX {
            return Err(format!(
                "--ranks is {ranks}: --transport sim takes 1 to {RANKS_MAX}"
            ));
        }
        Ok(Some(Link {
            gbit: self.link_gbit.unwrap_or(GBIT_DEFAULT),
            latency_us: self.link_us.unwrap_or(US_DEFAULT),
        }))
    }
}

impl Link {
    /// Rate of each rank's port in each direction.
    pub fn bytes_per_second(&self) -> u64 {
        (self.gbit * 1e9 / 8.0) as u64
    }

    /// From rank to rank.
    pub fn latency_ns(&self) -> u64 {
        (self.latency_us * 1e3) as u64
    }
}

fn parse_gbit(text: &str) -> Result<f64, String> {
    parse_within(text, 0.001, 1e6)
}

fn parse_latency(text: &str) -> Result<f64, String> {
    parse_within(text, 0.0, 1e6)
}

fn parse_within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("'{text}' is not a number from {least} to {most}")),
    }
}
