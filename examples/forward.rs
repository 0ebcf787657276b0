// LayerNorm of a batch of rows from Rust: the C API by its declarations, nothing generated.
//
//     rustc --edition 2021 -L native=/usr/local/lib forward.rs

use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};

// ---- What planish.h and dlpack.h declare, as far as it is used here ------------------------------

#[repr(C)]
struct DLDevice {
    device_type: c_int,
    device_id: i32,
}

#[repr(C)]
struct DLDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DLTensor {
    data: *mut c_void,
    device: DLDevice,
    ndim: i32,
    dtype: DLDataType,
    shape: *mut i64,
    strides: *mut i64, // null: dense
    byte_offset: u64,
}

#[repr(C)]
struct PlanishExec {
    struct_size: usize,
    parallel_for: *const c_void, // null: OpenMP's threads
    parallel_context: *mut c_void,
    stream: *mut c_void,
    workspace: *mut c_void,
    workspace_bytes: usize,
    message: *mut c_char,
    message_bytes: usize,
    apart: c_int,
}

#[link(name = "planish")]
extern "C" {
    fn planish_layer_norm_forward(
        normalized_ndim: i32,
        eps: f64,
        x: *const DLTensor,
        weight: *const DLTensor,
        bias: *const DLTensor,
        y: *const DLTensor,
        mean: *const DLTensor,
        rstd: *const DLTensor,
        exec: *const PlanishExec,
    ) -> c_int;
}

// ---- Use -----------------------------------------------------------------------------------------

const CPU: c_int = 1;
const FLOAT: u8 = 2;

/// A dense view of f32 values; `shape` outlives it.
fn view(data: *mut f32, shape: &mut [i64]) -> DLTensor {
    DLTensor {
        data: data.cast(),
        device: DLDevice {
            device_type: CPU,
            device_id: 0,
        },
        ndim: shape.len() as i32,
        dtype: DLDataType {
            code: FLOAT,
            bits: 32,
            lanes: 1,
        },
        shape: shape.as_mut_ptr(),
        strides: null_mut(),
        byte_offset: 0,
    }
}

/// LayerNorm over rows of `cols` values; an error is planish's sentence.
fn layer_norm(x: &[f32], cols: usize, eps: f64) -> Result<Vec<f32>, String> {
    let mut y = vec![0f32; x.len()];
    let mut shape = [(x.len() / cols) as i64, cols as i64];
    let mut shape_of_y = shape;
    let mut message = [0 as c_char; 256];
    let exec = PlanishExec {
        struct_size: std::mem::size_of::<PlanishExec>(),
        parallel_for: null(),
        parallel_context: null_mut(),
        stream: null_mut(),
        workspace: null_mut(),
        workspace_bytes: 0,
        message: message.as_mut_ptr(),
        message_bytes: message.len(),
        apart: 0,
    };
    // planish only reads x; DLTensor's pointer has no const.
    let tx = view(x.as_ptr().cast_mut(), &mut shape);
    let ty = view(y.as_mut_ptr(), &mut shape_of_y);
    // SAFETY: the descriptors, what they point to and exec live until the call returns, and x and y
    // have as many elements as their shapes say.
    let status = unsafe {
        planish_layer_norm_forward(1, eps, &tx, null(), null(), &ty, null(), null(), &exec)
    };
    if status == 0 {
        return Ok(y);
    }
    // SAFETY: planish closes the message with a 0 within message_bytes.
    Err(unsafe { CStr::from_ptr(message.as_ptr()) }
        .to_string_lossy()
        .into_owned())
}

fn main() {
    let x: Vec<f32> = (0..24).map(|i| (i * i % 17) as f32).collect();
    let y = layer_norm(&x, 6, 1e-5).expect("a valid call");
    for (r, row) in y.chunks(6).enumerate() {
        let mean = row.iter().map(|v| f64::from(*v)).sum::<f64>() / 6.0;
        let square = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 6.0;
        println!(
            "row {r}: mean {mean:+.6}, standard deviation {:.6}",
            square.sqrt()
        );
        assert!(mean.abs() < 1e-6 && (square - 1.0).abs() < 1e-5);
    }
    let refused = layer_norm(&x, 6, f64::NAN).expect_err("eps must be a number");
    println!("refused: {refused}");
}
