//! The figures that the published model gives: 1, 3, 6, 7 and 8.

use super::{Figure, GPUS_PER_SERVER, MEASURED, SERVERS};
use linerate::FusionOptions;
use linerate::sim::Fabric;
use linerate::whatif::{Members, Trace, WhatIf};
use linerate_job::plot::PlotPoint;
use linerate_job::step::{self, How};

/// Bandwidths of figures 3 and 6.
const GBITS: [f64; 5] = [1.0, 10.0, 25.0, 40.0, 100.0];
/// What the paper says of ResNet-50 on two servers in figure 3.
const TWO_SERVERS: [(f64, f64); 2] = [(1.0, 0.13), (10.0, 0.68)];
/// Compressions of figure 8.
const COMPRESSIONS: [f64; 6] = [1.0, 2.0, 5.0, 10.0, 50.0, 100.0];
const FACTOR: &str = "scaling factor";

fn shown(error: linerate::Error) -> String {
    error.to_string()
}

/// The scaling factor by the published model: GPUs count, or servers.
fn factor(trace: &Trace, gpus: u32, gbit: f64, is_by_server: bool) -> Result<f64, String> {
    let members = match is_by_server {
        true => Members::Servers {
            gpus_per_server: GPUS_PER_SERVER,
            inside_bits_per_second: f64::INFINITY,
        },
        false => Members::Gpus,
    };
    let whatif = WhatIf {
        gpus,
        members,
        bits_per_second: gbit * 1e9,
        ..WhatIf::default()
    };
    Ok(whatif.predict(trace).map_err(shown)?.scaling_factor)
}

/// The scaling factor of linerate on the paper's servers, in virtual time.
fn ours(trace: &Trace, gpus: u32, gbit: f64) -> Result<f64, String> {
    let fabric = Fabric {
        nic_gbit: gbit,
        ..Fabric::named("p3dn").map_err(shown)?
    };
    let how = How {
        ranks: gpus,
        fusion: FusionOptions::default(),
        algorithm: None,
        chunk_bytes: linerate::Config::default().chunk_bytes as u64,
    };
    Ok(step::run(trace, &fabric, &how)
        .map_err(shown)?
        .scaling_factor)
}

/// Figure 1: what Horovod reached by the number of servers.
pub fn of_servers(models: &[(usize, Trace)], rows: &mut Vec<PlotPoint>) -> Result<(), String> {
    for (model, trace) in models {
        let mut figure = Figure {
            rows,
            title: format!("Figure 1: {}, servers of 8 GPUs at 100 Gbit/s", trace.name),
            x: ("servers", true),
            y: FACTOR,
        };
        for (at, servers) in SERVERS.into_iter().enumerate() {
            let (x, gpus) = (f64::from(servers), servers * GPUS_PER_SERVER);
            figure.add("paper, Horovod measured", true, x, MEASURED[*model][at]);
            figure.add(
                "model, servers count",
                false,
                x,
                factor(trace, gpus, 100.0, true)?,
            );
            figure.add("linerate, simulated", false, x, ours(trace, gpus, 100.0)?);
        }
    }
    Ok(())
}

/// Figure 3: ResNet-50 by bandwidth and servers.
pub fn of_bandwidths(models: &[(usize, Trace)], rows: &mut Vec<PlotPoint>) -> Result<(), String> {
    let Some((_, trace)) = models.iter().find(|(_, trace)| trace.name == "resnet50") else {
        return Ok(());
    };
    let mut figure = Figure {
        rows,
        title: "Figure 3: resnet50 by bandwidth".into(),
        x: ("Gbit/s", true),
        y: FACTOR,
    };
    for (gbit, measured) in TWO_SERVERS {
        figure.add("paper, 2 servers measured", true, gbit, measured);
    }
    for servers in SERVERS {
        let gpus = servers * GPUS_PER_SERVER;
        for gbit in GBITS {
            let name = format!("model, {servers} servers");
            figure.add(&name, false, gbit, factor(trace, gpus, gbit, true)?);
        }
        for gbit in GBITS {
            let name = format!("linerate, {servers} servers simulated");
            figure.add(&name, false, gbit, ours(trace, gpus, gbit)?);
        }
    }
    Ok(())
}

/// Figures 6, 7 and 8: what if the network were fully used?
pub fn of_models(models: &[(usize, Trace)], rows: &mut Vec<PlotPoint>) -> Result<(), String> {
    let gpus = SERVERS[2] * GPUS_PER_SERVER;
    for (model, trace) in models {
        let mut figure = Figure {
            rows,
            title: format!("Figure 6: {} on 64 GPUs by bandwidth", trace.name),
            x: ("Gbit/s", true),
            y: FACTOR,
        };
        let measured = MEASURED[*model][2];
        figure.add("paper, Horovod measured", true, 100.0, measured);
        for gbit in GBITS {
            figure.add(
                "model, GPUs count",
                false,
                gbit,
                factor(trace, gpus, gbit, false)?,
            );
        }
        let link_share = explained(trace, gpus, measured)?;
        for gbit in GBITS {
            let name = format!("model, {:.1} Gbit/s reached at most", 100.0 * link_share);
            let reached = gbit.min(100.0 * link_share);
            figure.add(&name, false, gbit, factor(trace, gpus, reached, false)?);
        }
        for gbit in GBITS {
            figure.add("linerate, simulated", false, gbit, ours(trace, gpus, gbit)?);
        }
    }
    for (model, trace) in models {
        let mut figure = Figure {
            rows,
            title: format!("Figure 7: {} at 100 Gbit/s by GPUs", trace.name),
            x: ("GPUs", true),
            y: FACTOR,
        };
        for (at, servers) in SERVERS.into_iter().enumerate() {
            let x = f64::from(servers * GPUS_PER_SERVER);
            figure.add("paper, Horovod measured", true, x, MEASURED[*model][at]);
        }
        for gpus in [2, 4, 8, 16, 32, 64] {
            let value = factor(trace, gpus, 100.0, false)?;
            figure.add("model, GPUs count", false, f64::from(gpus), value);
        }
    }
    for gbit in [10.0, 100.0] {
        let mut figure = Figure {
            rows,
            title: format!("Figure 8: 64 GPUs at {gbit} Gbit/s by compression"),
            x: ("compression", true),
            y: FACTOR,
        };
        for (_, trace) in models {
            for compression in COMPRESSIONS {
                let whatif = WhatIf {
                    gpus,
                    bits_per_second: gbit * 1e9,
                    compression,
                    ..WhatIf::default()
                };
                let predicted = whatif.predict(trace).map_err(shown)?;
                let name = format!("model, {}", trace.name);
                figure.add(&name, false, compression, predicted.scaling_factor);
            }
        }
    }
    Ok(())
}

/// The share of 100 Gbit/s at which the model gives what was measured.
fn explained(trace: &Trace, gpus: u32, measured: f64) -> Result<f64, String> {
    let whatif = WhatIf {
        gpus,
        ..WhatIf::default()
    };
    let bits = whatif
        .least_bits_per_second(trace, measured)
        .map_err(shown)?;
    Ok(bits.unwrap_or(f64::INFINITY) / 100e9)
}
