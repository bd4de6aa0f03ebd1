//! Tests of `values.rs`: the check accepts a correct reduction in every type and sees one wrong
//! element.

use super::*;

/// Elements of a long buffer.
const MANY: usize = 2048;

fn data(dtype: DataType, op: Option<ReduceOp>, ranks: u32) -> Data {
    Data {
        seed: 7,
        dtype,
        op,
        ranks,
    }
}

fn whole(source: Source, len: u64) -> [Segment; 1] {
    [Segment {
        source,
        start: 0,
        len,
    }]
}

fn buffer(dtype: DataType, elements: usize) -> Buffer<u8> {
    let bytes = elements * dtype.size_bytes();
    let words = Buffer::from_vec(vec![0u64; bytes.div_ceil(8)]);
    words.cast().unwrap().range(..bytes)
}

fn count_wrong(data: &Data, segments: &[Segment], buffer: &Buffer<u8>) -> u64 {
    data.count_wrong(segments, buffer).unwrap()
}

fn write<T: Element>(buffer: &Buffer<u8>, index: usize, values: &[T]) {
    buffer.cast().unwrap().write(index, values).unwrap();
}

/// Reduces as a naive library would: in the type itself, rank after rank.
fn reduce_f32(data: &Data, elements: u64) -> Vec<f32> {
    let value = |index| {
        let inputs = (0..data.ranks).map(|rank| data.input::<f32>(rank, index));
        match data.op.unwrap() {
            ReduceOp::Sum => inputs.sum(),
            ReduceOp::Prod => inputs.product(),
            ReduceOp::Min => inputs.fold(f32::INFINITY, f32::min),
            ReduceOp::Max => inputs.fold(f32::NEG_INFINITY, f32::max),
            ReduceOp::Avg => inputs.sum::<f32>() / data.ranks as f32,
            ReduceOp::PremulSum(factor) => inputs.map(|x| x * factor as f32).sum(),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => unreachable!("of integers"),
        }
    };
    (0..elements).map(value).collect()
}

#[test]
fn a_correct_reduction_of_floats_has_no_wrong_element() {
    for ranks in [1, 2, 3, 8, 17, 300] {
        for op in &OPERATORS[..6] {
            let data = data(DataType::F32, Some(*op), ranks);
            let output = buffer(DataType::F32, 3000);
            write(&output, 0, &reduce_f32(&data, 3000));
            assert_eq!(
                count_wrong(&data, &whole(Source::All, 3000), &output),
                0,
                "{op} {ranks}"
            );
        }
    }
}

#[test]
fn integers_wrap_and_averages_truncate() {
    for ranks in [1u32, 2, 3, 5] {
        let sums = data(DataType::I8, Some(ReduceOp::Avg), ranks);
        let output = buffer(DataType::I8, 500);
        let naive = |index| {
            let sum: i8 = (0..ranks)
                .map(|rank| sums.input::<i8>(rank, index))
                .fold(0, i8::wrapping_add);
            sum / ranks as i8
        };
        write(&output, 0, &(0..500).map(naive).collect::<Vec<i8>>());
        assert_eq!(count_wrong(&sums, &whole(Source::All, 500), &output), 0);

        let products = data(DataType::U8, Some(ReduceOp::Prod), ranks);
        let naive = |index| {
            (0..ranks)
                .map(|rank| products.input::<u8>(rank, index))
                .fold(1, u8::wrapping_mul)
        };
        write(&output, 0, &(0..500).map(naive).collect::<Vec<u8>>());
        assert_eq!(count_wrong(&products, &whole(Source::All, 500), &output), 0);
    }
}

#[test]
fn an_input_is_its_own_broadcast_in_every_type() {
    for dtype in DataType::ALL {
        for elements in [0, 1, 7, MANY, MANY + 1] {
            let data = data(dtype, None, 4);
            let output = buffer(dtype, elements);
            data.fill(2, &output).unwrap();
            let wrong =
                |rank| count_wrong(&data, &whole(Source::Rank(rank), elements as u64), &output);
            assert_eq!(wrong(2), 0, "{dtype} {elements}");
            assert!(elements < 7 || wrong(1) > 0, "{dtype} {elements}");
        }
    }
}

#[test]
fn one_wrong_element_is_seen_wherever_it_is() {
    for dtype in DataType::ALL {
        for op in OPERATORS.into_iter().filter(|op| op.is_defined_for(dtype)) {
            // With one rank the reduction is the input, scaled where the operator scales.
            if op.factor().is_some() {
                continue;
            }
            let data = data(dtype, Some(op), 1);
            let elements = MANY + 3;
            let output = buffer(dtype, elements);
            for index in [0, 1, MANY - 1, MANY, elements - 1] {
                data.fill(0, &output).unwrap();
                let check =
                    |output| count_wrong(&data, &whole(Source::All, elements as u64), output);
                assert_eq!(check(&output), 0, "{dtype} {op}");
                let width = dtype.size_bytes();
                let last = &mut [0u8];
                output.read(index * width + width - 1, last).unwrap();
                write(&output, index * width + width - 1, &[last[0] ^ 0x41]);
                assert_eq!(check(&output), 1, "{dtype} {op} {index}");
            }
        }
    }
}

#[test]
fn a_poisoned_output_is_wrong_nearly_everywhere() {
    for dtype in DataType::ALL {
        let data = data(dtype, Some(ReduceOp::Sum), 2);
        let output = buffer(dtype, 100);
        poison(&output).unwrap();
        assert_eq!(
            count_wrong(&data, &whole(Source::All, 100), &output),
            100,
            "{dtype}"
        );
        clear(&output).unwrap();
        assert!(output.to_vec().unwrap().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn segments_are_looked_for_one_after_another() {
    let data = data(DataType::I32, None, 2);
    let inputs = [0, 1].map(|rank| {
        let input = buffer(DataType::I32, 10);
        data.fill(rank, &input).unwrap();
        input.cast::<i32>().unwrap().to_vec().unwrap()
    });
    let output = buffer(DataType::I32, 7);
    write(&output, 0, &inputs[1][4..8]);
    write(&output, 4, &inputs[0][2..5]);
    let segment = |rank, start, len| Segment {
        source: Source::Rank(rank),
        start,
        len,
    };
    let right = [segment(1, 4, 4), segment(0, 2, 3)];
    assert_eq!(count_wrong(&data, &right, &output), 0);
    let swapped = [segment(0, 2, 3), segment(1, 4, 4)];
    assert!(count_wrong(&data, &swapped, &output) > 5);
}

#[test]
fn few_ranks_are_exact_and_many_are_bounded() {
    let tolerance = |ranks| data(DataType::Bf16, Some(ReduceOp::Sum), ranks).tolerance::<bf16>();
    assert_eq!(tolerance(85), 0.0);
    assert!(tolerance(86) > 0.0);
    assert_eq!(
        data(DataType::I32, Some(ReduceOp::Avg), 3).tolerance::<i32>(),
        0.0
    );
    assert!(data(DataType::F32, Some(ReduceOp::Avg), 3).tolerance::<f32>() < 1e-6);
    assert_eq!(
        data(DataType::F32, Some(ReduceOp::PremulSum(2.0)), 4).tolerance::<f32>(),
        0.0
    );
    assert!(data(DataType::F32, Some(ReduceOp::PremulSum(0.1)), 4).tolerance::<f32>() > 0.0);
}

#[test]
fn the_seed_changes_the_data() {
    let first = data(DataType::I64, None, 2);
    let second = Data { seed: 8, ..first };
    assert_ne!(first.input::<i64>(0, 0), second.input::<i64>(0, 0));
}

#[test]
fn a_nan_is_wrong_whatever_is_tolerated() {
    assert!(!is_close(f32::NAN, 1.0, 10.0));
    assert!(is_close(1.5f32, 1.0, 0.5));
    assert!(!is_close(1.5f32, 1.0, 0.0));
}
