//! Calls that come again on the same memory run another way than the first: the same bits must come out.

use crate::on_ranks;
use linerate::{Buffer, Call, Collective, Communicator, DataType, ReduceOp};

/// Calls of `count` elements, each on memory of its own.
fn calls(comm: &Communicator, dtype: DataType, count: u64) -> Vec<Call> {
    let ranks = comm.ranks() as usize;
    let bytes = count as usize * dtype.size_bytes();
    let new = |parts: usize| comm.alloc(parts * bytes).unwrap();
    let ops = [
        ReduceOp::Sum,
        ReduceOp::Prod,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Avg,
    ];
    let mut calls = Vec::new();
    for op in ops {
        let in_place = new(1);
        calls.push(Call::all_reduce(dtype, op, count, &in_place, &in_place));
        calls.push(Call::all_reduce(dtype, op, count, &new(1), &new(1)));
        let reduce = Call {
            op,
            root: comm.ranks() - 1,
            ..Call::new(Collective::Reduce, dtype, count)
        };
        calls.push(reduce.with(&new(1), &new(1)));
    }
    let copies = [
        (Collective::Broadcast, 1, 1),
        (Collective::AllGather, 1, ranks),
        (Collective::AllToAll, ranks, ranks),
    ];
    for (collective, input, output) in copies {
        calls.push(Call::new(collective, dtype, count).with(&new(input), &new(output)));
    }
    calls
}

/// Bytes of every kind of number, NaN and subnormal ones among them, others on every rank and in every round.
fn fill(buffer: &Buffer, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = (0..buffer.len_bytes()).map(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    });
    buffer.write::<u8>(0, &bytes.collect::<Vec<u8>>());
}

/// The bytes of the output; sums and products give NaNs of no particular bits, so those are made alike.
fn result(call: &Call) -> Vec<u8> {
    let output = call.output.as_ref().unwrap();
    let is_copied = matches!(
        call.collective,
        Collective::Broadcast | Collective::AllGather | Collective::AllToAll
    );
    match call.dtype {
        _ if is_copied => output.to_vec::<u8>(),
        DataType::F32 => (output.to_vec::<f32>().iter())
            .flat_map(|x| if x.is_nan() { f32::NAN } else { *x }.to_le_bytes())
            .collect(),
        DataType::F16 => (output.to_vec::<half::f16>().iter())
            .flat_map(|x| if x.is_nan() { half::f16::NAN } else { *x }.to_le_bytes())
            .collect(),
        _ => output.to_vec::<u8>(),
    }
}

#[test]
fn calls_that_come_again_give_the_bits_of_the_first() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |comm| {
            for dtype in [DataType::F32, DataType::F16, DataType::I64, DataType::I8] {
                for count in [1, 2, 5, 6, 7, 13] {
                    for call in calls(&comm, dtype, count) {
                        for round in 0..3 {
                            let seed = u64::from(comm.rank()) << 32 | count << 8 | round;
                            let refill = || {
                                fill(call.output.as_ref().unwrap(), seed);
                                fill(call.input.as_ref().unwrap(), seed + 100);
                                comm.barrier().unwrap();
                            };
                            refill();
                            comm.start(&call).unwrap().wait().unwrap();
                            let expected = result(&call);
                            comm.barrier().unwrap();
                            refill();
                            comm.run(&call).unwrap();
                            assert_eq!(result(&call), expected, "round {round} of {call:?}");
                        }
                    }
                }
            }
        });
    }
}
