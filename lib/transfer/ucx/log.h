// Where UCX writes what it has to say.
#pragma once

namespace lorry::transfer::ucx {

// To stderr, once a process: by itself UCX writes to stdout, which belongs to programs' own output,
// and it has read UCX_LOG_FILE before main. An operator who set that gets the file.
void LogToStderr();

}  // namespace lorry::transfer::ucx
