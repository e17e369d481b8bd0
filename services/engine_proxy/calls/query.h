// The query of a request: what FastAPI would read in it. Pure, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lorry::calls {

struct QueryField {
  std::string_view name;
  std::string_view value;
};

// `query` begins with '?', or is empty. Escapes are left as they are: no name and no value that
// anybody here reads needs one.
std::vector<QueryField> QueryFields(std::string_view query);
// The last of that name, as FastAPI takes it.
std::optional<std::string_view> FindInQuery(const std::vector<QueryField>& fields,
                                            std::string_view name);
// The words that pydantic takes for a truth value.
std::optional<bool> TruthOf(std::string_view word);

}  // namespace lorry::calls
