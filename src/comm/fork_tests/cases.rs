//! The public functions that a child calls, and what each must do there.

use super::calls::{self, Try};
use super::{Held, adopt, by_address, is_refused, register, sparse_options, tensors};
use crate::bootstrap::Exchange;
use crate::comm::{
    Buffer, Fusion, Operation, ParameterServer, PartialAllreduce, PartialFusion,
    PartialFusionOptions, ServerOptions, SparseAllreduce,
};
use crate::error::{Error, Result};
use crate::fusion::FusionOptions;
use crate::optimizer::Optimizer;
use crate::partial::PartialOptions;
use crate::types::{Collective, DataType, ReduceOp};
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

type Fallible<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Case = (&'static str, bool);

/// Calls every function; returns its name and whether it did what it may do in a child.
pub(super) fn cases(held: &mut Held) -> Vec<Case> {
    let mut cases = of_communicator(held);
    cases.extend(of_calls(held));
    cases.extend(of_builder(held));
    cases.extend(of_operations(held));
    cases.extend(of_queue(held));
    cases.extend(of_window(held));
    cases.extend(of_server(held));
    cases.extend(of_fusion(held));
    cases.extend(of_partial(held));
    cases.extend(of_sparse(held));
    cases.extend(of_results(held));
    cases.extend(of_memory(held));
    cases.extend(of_simulation(held));
    cases
}

/// An exchange that a child must not use.
struct Unused;

impl Exchange for Unused {
    fn put(&self, key: &str, _: &[u8], _: Duration) -> Fallible<()> {
        panic!("a child puts {key}")
    }

    fn get(&self, key: &str, _: Duration) -> Fallible<Option<Vec<u8>>> {
        panic!("a child gets {key}")
    }
}

fn of_communicator(held: &mut Held) -> Vec<Case> {
    let Held { comm, small, .. } = held;
    let other = 1 - comm.rank();
    let limit = Duration::from_secs(9);
    let tagged = comm.tagged(1).timeout(Duration::from_secs(9));
    let both = || {
        comm.group()
            .send(&*small, other)
            .recv(&*small, other)
            .timeout(limit)
    };
    comm.abort("a child must not be heard");
    vec![
        ("Communicator::abort", true),
        ("Communicator::rank", comm.rank() < 2),
        ("Communicator::ranks", comm.ranks() == 2),
        ("Communicator::transport", !comm.transport().is_empty()),
        ("Communicator::fmt", format!("{comm:?}").contains("rank")),
        ("Communicator::rebuild", is_refused(comm.rebuild())),
        ("Communicator::split", is_refused(comm.split(Some(0), 0))),
        ("Communicator::duplicate", is_refused(comm.duplicate())),
        (
            "Communicator::sibling",
            is_refused(comm.sibling(&[comm.rank()], "a child", &Unused)),
        ),
        ("Communicator::alloc", is_refused(comm.alloc::<u8>(64))),
        (
            "Communicator::adopt",
            is_refused(adopt(comm, small)) && is_refused(adopt(comm, &held.plain)),
        ),
        ("Communicator::register", is_refused(register(comm, None))),
        (
            "Communicator::register_memfd",
            is_refused(register(comm, Some(std::io::stdin().as_fd()))),
        ),
        (
            "Communicator::buffer_at",
            is_refused(comm.buffer_at(held.registered.raw().view().as_ptr(), 1)),
        ),
        (
            "Communicator::deregister",
            is_refused(comm.deregister(held.registered.raw().view().as_ptr())),
        ),
        (
            "Communicator::unregistered_bytes",
            is_refused(comm.unregistered_bytes()),
        ),
        (
            "Communicator::failure",
            comm.failure() == Some(Error::Forked),
        ),
        (
            "Communicator::transport_counts",
            comm.transport_counts().is_empty(),
        ),
        (
            "Communicator::set_timeout",
            is_refused(comm.set_timeout(Duration::from_secs(9))),
        ),
        ("Communicator::group", true),
        ("Communicator::tagged", true),
        ("Tagged::timeout", true),
        (
            "Tagged::start_send",
            is_refused(tagged.start_send(small, 0)),
        ),
        (
            "Tagged::start_recv",
            is_refused(tagged.start_recv(small, 0)),
        ),
        (
            "Tagged::start_recv_any",
            is_refused(tagged.start_recv_any(small)),
        ),
        ("Group::timeout", true),
        ("Group::send", true),
        ("Group::recv", true),
        ("Group::start", is_refused(both().start())),
        ("Group::run", is_refused(both().run())),
    ]
}

fn of_calls(held: &mut Held) -> Vec<Case> {
    let (comm, small, plain) = (&held.comm, &held.small, &held.plain);
    // `foreign` has not registered the buffer: it would have to do that before the call.
    let foreign = held.only.as_ref().unwrap();
    let tried = [(comm, small), (comm, plain), (foreign, small)];
    let is_refused_to_all = |call: Try| {
        let mut tried = tried.iter();
        tried.all(|(comm, all)| is_refused(call(comm, all, &all.range(..2))))
    };
    let calls = calls::BLOCKING.iter().chain(calls::STARTED);
    calls
        .map(|&(name, call)| (name, is_refused_to_all(call)))
        .collect()
}

fn of_builder(held: &mut Held) -> Vec<Case> {
    let collective = (held.comm).collective(Collective::AllReduce, DataType::F32, 4);
    let made = collective.op(ReduceOp::Sum).root(0).algorithm("ring");
    let made = made.send_counts(&[]).receive_counts(&[]);
    let made = made
        .timeout(Duration::from_secs(9))
        .input(&held.small)
        .output(&held.small);
    let batch = held
        .comm
        .batch()
        .with(made.clone())
        .timeout(Duration::from_secs(9));
    let [at, run_at] = by_address(&made).map(|error| error == Some(Error::Forked));
    vec![
        ("Communicator::collective", true),
        ("CollectiveBuilder::at", at),
        ("CollectiveBuilder::run_at", run_at),
        ("CollectiveBuilder::op", true),
        ("CollectiveBuilder::root", true),
        ("CollectiveBuilder::algorithm", true),
        ("CollectiveBuilder::timeout", true),
        ("CollectiveBuilder::send_counts", true),
        ("CollectiveBuilder::receive_counts", true),
        ("CollectiveBuilder::input", true),
        ("CollectiveBuilder::output", true),
        ("CollectiveBuilder::inputs", true),
        ("CollectiveBuilder::outputs", true),
        ("Communicator::batch", true),
        ("Batch::with", true),
        ("Batch::timeout", true),
        ("Batch::run", is_refused(batch.run())),
        ("Batch::start", is_refused(batch.start())),
        ("CollectiveBuilder::run", is_refused(made.run())),
        (
            "CollectiveBuilder::run_within",
            is_refused(made.run_within(Duration::from_secs(1))),
        ),
        ("CollectiveBuilder::start", is_refused(made.start())),
        ("CollectiveBuilder::explain", is_refused(made.explain())),
    ]
}

fn of_operations(held: &mut Held) -> Vec<Case> {
    let names = [
        "Operation::test",
        "Operation::wait_timeout",
        "Operation::poll",
        "Operation::notify",
        "Operation::source",
        "Operation::cancel_receive",
        "Operation::fmt",
        "Operation::wait",
        "Operation::cancel",
        "Operation::drop",
    ];
    let mut under_way = std::mem::take(&mut held.under_way).into_iter();
    let Some(mut first) = under_way.next() else {
        return names.map(|name| (name, true)).to_vec();
    };
    let mut take = || under_way.next().unwrap();
    let poll = |operation: &mut Operation| {
        let polled = Pin::new(operation).poll(&mut Context::from_waker(Waker::noop()));
        matches!(polled, Poll::Ready(result) if is_refused(result.clone()))
    };
    let is_right = [
        is_refused(first.test()),
        is_refused(first.wait_timeout(Duration::ZERO)),
        poll(&mut first),
        is_refused(first.notify(&held.queue, 1)),
        first.source().is_none(),
        is_refused(first.cancel_receive()),
        format!("{first:?}").contains("result"),
        is_refused(take().wait()),
        is_refused(take().cancel()),
        true,
    ];
    drop(first);
    names.into_iter().zip(is_right).collect()
}

fn of_queue(held: &mut Held) -> Vec<Case> {
    let (comm, queue) = (&held.comm, &held.queue);
    let wait_into = queue.wait_into(&mut Vec::new(), 1, Duration::ZERO);
    vec![
        (
            "Communicator::completion_queue",
            is_refused(comm.completion_queue()),
        ),
        (
            "CompletionQueue::wait",
            is_refused(queue.wait(Duration::from_secs(60))),
        ),
        ("CompletionQueue::wait_into", is_refused(wait_into)),
        ("CompletionQueue::running_count", queue.running_count() == 0),
        (
            "CompletionQueue::descriptor",
            is_refused(queue.descriptor()),
        ),
        (
            "CompletionQueue::fmt",
            format!("{queue:?}").contains("completions"),
        ),
    ]
}

fn of_window(held: &mut Held) -> Vec<Case> {
    let window = held.window.take().unwrap();
    let word = Buffer::from_vec(vec![0u64; 1]);
    let mut seen = [0; 1];
    let mut cases = vec![
        ("Communicator::window", is_refused(held.comm.window(&word))),
        (
            "Communicator::start_window",
            is_refused(held.comm.start_window(&word)),
        ),
        ("Window::fmt", format!("{window:?}").contains("Window")),
        ("Window::len", window.len() == 4),
        ("Window::is_empty", !window.is_empty()),
        ("Window::len_of", window.len_of(1) == Ok(4)),
        ("Window::is_ready", window.is_ready() == Ok(true)),
        ("Window::put", is_refused(window.put(&word, 1, 0))),
        ("Window::get", is_refused(window.get(&word, 1, 0))),
        (
            "Window::put_signal",
            is_refused(window.put_signal(&word, 1, 0, (&window, 1), 1)),
        ),
        ("Window::flush", is_refused(window.flush(1))),
        ("Window::read", is_refused(window.read(0, &mut seen))),
        ("Window::write", is_refused(window.write(0, &seen))),
        (
            "Window::fetch_and_add",
            is_refused(window.fetch_and_add(1, 0, 1, &word)),
        ),
        (
            "Window::compare_and_swap",
            is_refused(window.compare_and_swap(1, 0, (0, 1), &word)),
        ),
        ("Window::wait_signal", is_refused(window.wait_signal(0, 1))),
    ];
    cases.push(("Window::close", is_refused(window.close())));
    cases
}

fn of_server(held: &mut Held) -> Vec<Case> {
    let server = held.server.take().unwrap();
    let one = [Buffer::from_vec(vec![0f32; 4])];
    let made = ParameterServer::new(&held.comm, tensors(), ServerOptions::default());
    let with_update = ParameterServer::with_update(
        &held.comm,
        tensors(),
        ServerOptions::default(),
        |_, _, _| (),
    );
    let set = server.set_optimizer(Optimizer::sgd(), 0.1, 0);
    let mut cases = vec![
        ("ParameterServer::new", is_refused(made)),
        ("ParameterServer::with_update", is_refused(with_update)),
        (
            "ParameterServer::gradients",
            is_refused(server.gradients::<f32>()),
        ),
        ("ParameterServer::load", is_refused(server.load("x"))),
        ("ParameterServer::save", is_refused(server.save("x"))),
        ("ParameterServer::set_optimizer", is_refused(set)),
        ("ParameterServer::report", is_refused(server.report())),
        ("ParameterServer::address", is_refused(server.address())),
        ("ParameterServer::worker", server.worker().is_some()),
        ("ParameterServer::detach", is_refused(server.detach())),
        ("ParameterServer::attach", is_refused(server.attach())),
        (
            "ParameterServer::push_pull",
            is_refused(server.push_pull(&one, &one)),
        ),
        (
            "ParameterServer::fmt",
            format!("{server:?}").contains("workers"),
        ),
        ("ParameterServer::init", is_refused(server.init(&one))),
        ("ParameterServer::push", is_refused(server.push(&one))),
        ("ParameterServer::wait_ok", is_refused(server.wait_ok())),
        ("ParameterServer::pull", is_refused(server.pull(&one))),
        ("ParameterServer::step", is_refused(server.step(&one, &one))),
    ];
    cases.push(("ParameterServer::finish", is_refused(server.finish())));
    cases
}

fn of_fusion(held: &mut Held) -> Vec<Case> {
    let fusion = held.fusion.take().unwrap();
    let (comm, options) = (&held.comm, FusionOptions::default);
    let planned = Fusion::with_plan(comm, options(), tensors(), &[vec![0]]);
    vec![
        (
            "Fusion::new",
            is_refused(Fusion::new(comm, options(), tensors())),
        ),
        ("Fusion::with_plan", is_refused(planned)),
        (
            "Fusion::announce",
            is_refused(fusion.announce(0, &held.small)),
        ),
        (
            "Fusion::end_of_backward",
            is_refused(fusion.end_of_backward()),
        ),
        ("Fusion::notify", is_refused(fusion.notify(&held.queue, 1))),
        ("Fusion::wait", is_refused(fusion.wait())),
        ("Fusion::now", fusion.now() <= fusion.now()),
    ]
}

fn of_partial(held: &mut Held) -> Vec<Case> {
    let partial = held.partial.take().unwrap();
    let fusion = held.partial_fusion.take().unwrap();
    let (comm, one) = (&held.comm, &held.small);
    let parts = std::slice::from_ref(one);
    let made = PartialAllreduce::new(comm, DataType::F32, 4, PartialOptions::default());
    let fused = PartialFusion::new(comm, tensors(), PartialFusionOptions::default());
    vec![
        ("PartialAllreduce::new", is_refused(made)),
        ("PartialAllreduce::submit", is_refused(partial.submit(one))),
        (
            "PartialAllreduce::submit_parts",
            is_refused(partial.submit_parts(parts)),
        ),
        (
            "PartialAllreduce::notify",
            is_refused(partial.notify(&held.queue, 1)),
        ),
        ("PartialAllreduce::next", is_refused(partial.next(one))),
        (
            "PartialAllreduce::next_parts",
            is_refused(partial.next_parts(parts)),
        ),
        (
            "PartialAllreduce::try_next",
            is_refused(partial.try_next(one)),
        ),
        (
            "PartialAllreduce::exchange",
            is_refused(partial.exchange(one, one)),
        ),
        (
            "PartialAllreduce::catch_up",
            is_refused(partial.catch_up(one, drop)),
        ),
        (
            "PartialAllreduce::finish",
            is_refused(partial.finish(one, drop)),
        ),
        (
            "PartialAllreduce::finish_parts",
            is_refused(partial.finish_parts(parts, drop)),
        ),
        ("PartialAllreduce::lag", partial.lag() == 0),
        (
            "PartialAllreduce::fmt",
            format!("{partial:?}").contains("bytes"),
        ),
        ("PartialFusion::new", is_refused(fused)),
        ("PartialFusion::buffers", fusion.buffers().len() == 1),
        ("PartialFusion::submit", is_refused(fusion.submit(0, one))),
        ("PartialFusion::next", is_refused(fusion.next(parts))),
        (
            "PartialFusion::finish",
            is_refused(fusion.finish(parts, |_, _| ())),
        ),
    ]
}

fn of_sparse(held: &mut Held) -> Vec<Case> {
    let mut sparse = held.sparse.take().unwrap();
    let mut started = held.sparse_under_way.take().unwrap();
    let one = std::slice::from_ref(&held.small);
    let made = SparseAllreduce::new(&held.comm, tensors(), sparse_options());
    let first = |sparse: &SparseAllreduce| {
        let residual = sparse.residual("weight").unwrap();
        residual.as_slice().unwrap()[1]
    };
    // The child has its own copy of the residuals, and may save and change it.
    let saved = sparse.save().unwrap();
    let before = first(&sparse);
    let is_scaled = sparse.scale_residuals(2.0).is_ok() && first(&sparse) == 2.0 * before;
    let is_reset = sparse.reset().is_ok() && first(&sparse) == 0.0;
    vec![
        ("SparseAllreduce::new", is_refused(made)),
        ("SparseAllreduce::run", is_refused(sparse.run(one))),
        ("SparseAllreduce::start", is_refused(sparse.start(one))),
        (
            "SparseAllreduce::test",
            is_refused(sparse.test()) && is_refused(started.test()),
        ),
        (
            "SparseAllreduce::notify",
            is_refused(started.notify(&held.queue, 1)),
        ),
        (
            "SparseAllreduce::flush_residual",
            is_refused(sparse.flush_residual()),
        ),
        ("SparseAllreduce::save", !saved.is_empty()),
        ("SparseAllreduce::scale_residuals", is_scaled),
        ("SparseAllreduce::reset", is_reset),
        (
            "SparseAllreduce::load",
            sparse.load(&saved).is_ok() && first(&sparse) == before,
        ),
        (
            "SparseAllreduce::load_after_resize",
            sparse.load_after_resize(&saved).is_ok(),
        ),
        ("SparseAllreduce::residual", before != 0.0),
        (
            "SparseAllreduce::picks_of",
            started.picks_of(0).count() + sparse.picks_of(0).count() == 1,
        ),
        ("SparseAllreduce::k", sparse.k() == 1),
        ("SparseAllreduce::steps", sparse.steps() == 1),
        ("SparseAllreduce::tensors", sparse.tensors().len() == 1),
    ]
}

fn of_results(held: &mut Held) -> Vec<Case> {
    let [sparse, dense] = &held.results;
    let (outputs, registered) = ([held.plain.clone()], [held.small.clone()]);
    vec![
        ("SparseResult::entries", sparse.entries().0 == [0]),
        ("SparseResult::entries_of", sparse.entries_of(0).1 == [8.0]),
        ("SparseResult::nonzeros_of", {
            let entries = sparse.nonzeros_of(0).unwrap();
            entries.eq([(0, 8.0)]) && is_refused(dense.nonzeros_of(0))
        }),
        ("SparseResult::dense", dense.dense().is_some()),
        ("SparseResult::add_to", {
            let is_done = sparse.add_to(&outputs, 0.0).is_ok();
            is_done && is_refused(sparse.add_to(&registered, 0.0))
        }),
    ]
}

fn of_memory(held: &mut Held) -> Vec<Case> {
    let (buffer, plain) = (&held.buffer, &held.plain);
    let other_type = buffer.cast::<u8>().unwrap();
    let again = other_type.cast::<f32>().unwrap();
    let registered = [
        again,
        buffer.range(7..9),
        held.adopted.clone(),
        held.registered.clone(),
    ];
    type OnBuffer = fn(&Buffer<f32>) -> Result<()>;
    let is_refused = |run: OnBuffer| registered.iter().all(|it| is_refused(run(it)));
    let is_five = |all: &[f32]| all == [5.0; 4];
    let mut read = [0.0];
    vec![
        ("Buffer::as_slice", {
            is_refused(|it| it.as_slice().map(drop))
                && plain.as_slice().is_ok_and(|it| is_five(&it))
        }),
        ("Buffer::as_mut_slice", {
            let is_done = plain.as_mut_slice().map(|mut all| all[0] = 7.0).is_ok();
            is_done && is_refused(|it| it.as_mut_slice().map(drop))
        }),
        ("Buffer::read", {
            let is_done = plain.read(0, &mut read).is_ok() && read == [7.0];
            is_done && is_refused(|it| it.read(1, &mut [0.0]))
        }),
        ("Buffer::write", {
            plain.write(1, &[8.0]).is_ok() && is_refused(|it| it.write(1, &[8.0]))
        }),
        ("Buffer::to_vec", {
            let is_known = |all: Vec<f32>| all == [7.0, 8.0, 5.0, 5.0];
            plain.to_vec().is_ok_and(is_known) && is_refused(|it| it.to_vec().map(drop))
        }),
        ("Buffer::range", plain.range(1..2).len() == 1),
        ("Buffer::cast", other_type.len() == 1 << 20),
        ("Buffer::len", plain.len() == 4),
        ("Buffer::is_empty", !plain.is_empty()),
        ("Buffer::is_registered", {
            buffer.is_registered() && !plain.is_registered()
        }),
        ("Buffer::clone", plain.clone().len() == 4),
        ("Buffer::fmt", format!("{buffer:?}").contains("len")),
    ]
}

fn of_simulation(held: &mut Held) -> Vec<Case> {
    let mut simulation = held.simulation.take().unwrap();
    let gradients = vec![vec![held.plain.clone()]; 2];
    let communicator = simulation.communicators()[0].clone();
    vec![
        ("Simulation::leave", is_refused(simulation.leave(0))),
        (
            "Simulation::run",
            is_refused(simulation.run(|_| true)) && is_refused(communicator.barrier()),
        ),
        (
            "Simulation::advance",
            is_refused(simulation.advance().map(drop)),
        ),
        (
            "Simulation::run_sparse",
            is_refused(simulation.run_sparse(&mut held.simulated, &gradients)),
        ),
        ("Simulation::communicators", true),
        ("Simulation::world", simulation.world().is_alive(0)),
        ("Simulation::now", simulation.now() == simulation.now()),
    ]
}
