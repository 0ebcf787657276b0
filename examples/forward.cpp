/*
 * RMSNorm and its backward from C++: the header is C++ too, and errors become exceptions here.
 *
 *     c++ -std=c++11 forward.cpp $(pkg-config --cflags --libs planish)
 */
#include <planish.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/* A dense f32 tensor that owns its values; view() is what planish takes. */
class Tensor {
  public:
    explicit Tensor(std::vector<int64_t> shape) : shape_(std::move(shape)) {
        size_t count = 1;
        for (int64_t size : shape_)
            count *= static_cast<size_t>(size);
        values_.resize(count);
    }
    float &operator[](size_t i) { return values_[i]; }
    size_t size() const { return values_.size(); }
    DLTensor view() {
        DLTensor t = DLTensor();
        t.data = values_.data();
        t.device = DLDevice{kDLCPU, 0};
        t.ndim = static_cast<int32_t>(shape_.size());
        t.dtype = DLDataType{kDLFloat, 32, 1};
        t.shape = shape_.data();
        return t;
    }

  private:
    std::vector<int64_t> shape_;
    std::vector<float> values_;
};

/* planish_rms_norm_forward over the last axis; throws what planish says. */
void rms_norm(double eps, Tensor &x, Tensor &weight, Tensor &y, Tensor &rstd) {
    char message[256] = "";
    planish_exec exec = planish_exec();
    exec.struct_size = sizeof exec;
    exec.message = message;
    exec.message_bytes = sizeof message;
    const DLTensor tx = x.view(), tweight = weight.view(), ty = y.view(), trstd = rstd.view();
    const planish_status status =
        planish_rms_norm_forward(1, eps, &tx, &tweight, &ty, &trstd, &exec);
    if (status != PLANISH_OK)
        throw std::runtime_error(std::string(planish_status_name(status)) + ": " + message);
}

} // namespace

int main() {
    const int64_t rows = 3, cols = 5;
    Tensor x({rows, cols}), weight({cols}), y({rows, cols}), rstd({rows});
    for (size_t i = 0; i < x.size(); i++)
        x[i] = static_cast<float>(i) - 6;
    for (size_t i = 0; i < weight.size(); i++)
        weight[i] = 2;
    rms_norm(0, x, weight, y, rstd);

    /* Each row's mean square is that of the weight. */
    for (int64_t r = 0; r < rows; r++) {
        double square = 0;
        for (int64_t c = 0; c < cols; c++)
            square += std::pow(y[static_cast<size_t>(r * cols + c)], 2) / static_cast<double>(cols);
        std::printf("row %d: mean square %.6f\n", static_cast<int>(r), square);
        if (std::fabs(square - 4) > 1e-5)
            return 1;
    }

    Tensor wrong({cols - 1});
    try {
        rms_norm(0, x, wrong, y, rstd);
    } catch (const std::runtime_error &error) {
        std::printf("refused: %s\n", error.what());
        return 0;
    }
    return 1;
}
