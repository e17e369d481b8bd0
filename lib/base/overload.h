// Overload: several lambdas as one visitor of a std::variant.
#pragma once

namespace lorry {

template <class... Ts>
struct Overload : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overload(Ts...) -> Overload<Ts...>;

}  // namespace lorry
