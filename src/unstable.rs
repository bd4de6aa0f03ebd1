//! The part of the private modules that this repository's tools, benches, fuzz targets and tests of
//! internals reach.
//!
//! It is no part of the interface: any name here may change or go with any version. Every item is
//! listed by itself, and `tests/tidy.rs` checks that something outside `src` uses it and that
//! nothing meant for users does.

pub mod bootstrap {
    pub use crate::bootstrap::{
        Launched, NetworkLink, check_descriptors, free_port, fresh_secret, launched_from_env,
        network_links, nonce, place_from_env, read_secret,
    };
}

pub mod comm {
    pub use crate::comm::{
        SimulatedServer, Training, begin_profile, end_profile, findings_host,
        last_level_cache_bytes,
    };
}

pub mod config {
    pub use crate::config::{RAILS_MAX, parse_size, parse_timeout};
}

pub mod cost {
    pub use crate::cost::{FINDINGS_MAX, Finding, Models, emit, parse};
}

pub mod engine {
    pub use crate::engine::{Arguments, Contact, Engine, Host, Prepared, TaskCall, TaskId};
}

pub mod fusion {
    pub use crate::fusion::BUFFERS_COUNT_MAX;
}

pub mod kernel {
    pub use crate::kernel::{is_for_streaming, reduce, reduce_streaming, scale};

    pub mod select {
        pub use crate::kernel::select::{
            Picks, Source, accumulate, collect, gaussian_magnitude, magnitude, moments, select_top,
        };
    }
}

pub mod limits {
    pub use crate::limits::{CACHE_LINE_BYTES, RANKS_MAX};
}

pub mod memory {
    pub use crate::memory::{available_memory_bytes, meminfo_field};
}

pub mod partial {
    pub use crate::partial::{Action, Header, Machine, Next, Notice, initiator};
}

pub mod prng {
    pub use crate::prng::{Prng, mix};
}

pub mod shm {
    pub use crate::transport::shm::fetch_own;
}

pub mod sparse {
    pub use crate::sparse::{
        Action, Arrived, Entries, Finished, LocalSelection, Machine, Message, OkTopkState, Prices,
        Request, Sized, Step, Stream, Support, build_plan, choose,
    };
}

pub mod rdma {
    use crate::comm::Simulation;
    use crate::config::Config;
    use crate::error::Result;
    pub use crate::transport::rdma::{Defect, DeviceWorld};
    use crate::transport::sim::SimOptions;

    /// A simulated job whose ranks write to each other by these devices.
    pub fn simulation(
        devices: &DeviceWorld,
        options: SimOptions,
        config: Config,
    ) -> Result<Simulation> {
        Simulation::over(Some(devices.clone()), options, config)
    }
}

pub mod staleness {
    pub use crate::staleness::{Controller, Decision, Run, run};
}

pub mod ofi {
    pub use crate::transport::ofi::{Candidate, check, has_efa, list};
}

pub mod transport {
    pub use crate::transport::between::{Far, check_required, own_offer};
    pub use crate::transport::open::check_name;
}

pub mod verbs {
    pub use crate::transport::fabric::Fabric;
    pub use crate::transport::verbs::check;

    pub mod choose {
        pub use crate::transport::verbs::choose::{Choice, Wish, choose};
    }

    pub mod sysfs {
        pub use crate::transport::verbs::sysfs::{Device, LinkLayer, PcieLink, Port, Tree};
    }
}

pub mod wait {
    pub use crate::wait::{Activity, Clock, Patience, Profile, Spent, SpinTime, Step, futex_wait};
}

pub mod wire {
    pub use crate::wire::{
        Claim, ControlMessage, Frame, FrameHeader, HANDSHAKE_BYTES, HEADER_BYTES, HandshakeMessage,
        Initiator, JobKey, Limits, NONCE_BYTES, Purpose, Responder, Tls,
    };
}
