// What real replies mean to the drivers. The samples were recorded from SGLang 0.5.23 and vLLM
// 0.32.0, shortened.
#include "services/engine_proxy/engines/wire.h"

#include <gmock/gmock.h>

#include "lib/base/error.h"
#include "services/engine_proxy/engines/probe.h"

namespace lorry::engines {
namespace {

using fleet::EngineKind;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr char kSglangInfo[] = R"({"model_path":"m","tokenizer_worker_num":1,"dp_size":1,
  "enable_dp_attention":false,"served_model_name":"base","load_format":"auto",
  "incremental_streaming_output":false,"enable_lora":true,"max_lora_rank":16,
  "lora_target_modules":["q_proj","k_proj"],"max_loaded_loras":null,"max_loras_per_batch":4,
  "startup_time":{"load_weight":0.067,"tokenizer_e2e":66.06},"version":"0.5.23"})";

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::vector<std::string> ReasonsOf(const EngineFacts& facts) {
  std::vector<std::string> reasons;
  for (const Problem& problem : facts.problems) reasons.push_back(problem.reason);
  return reasons;
}

EngineFacts SglangFacts(const std::string& from = "", const std::string& to = "") {
  const std::string text = from.empty() ? kSglangInfo : Replaced(kSglangInfo, from, to);
  return ParseSglangInfo({200, text}).value();
}

TEST(SglangInfo, TellsLimitsAndHasNoProblems) {
  const EngineFacts facts = SglangFacts();
  EXPECT_EQ(facts.version, "0.5.23");
  EXPECT_THAT(facts.base_models, ElementsAre("base"));
  EXPECT_TRUE(facts.cumulative_streams);
  EXPECT_EQ(facts.limits,
            (fleet::EngineLimits{EngineKind::kSglang, 16, 0, 4, {"k_proj", "q_proj"}}));
  EXPECT_THAT(facts.problems, IsEmpty());
}

TEST(SglangInfo, WhatWaitsMayBeAbortedSinceTheVersionThatLetsGoOfItsAdapter) {
  for (const char* version : {"0.5.23", "0.5.23.post1", "0.5.24", "0.6.0", "1.0.0"}) {
    EXPECT_TRUE(
        SglangFacts("\"version\":\"0.5.23\"", "\"version\":\"" + std::string(version) + "\"")
            .aborts_waiting)
        << version;
  }
  for (const char* version : {"0.5.22", "0.4.99", "0.5", "", "dev"}) {
    EXPECT_FALSE(
        SglangFacts("\"version\":\"0.5.23\"", "\"version\":\"" + std::string(version) + "\"")
            .aborts_waiting)
        << version;
  }
}

TEST(SglangInfo, TheBootMarkerIsAFingerprintOfTheStartUpDurations) {
  EXPECT_EQ(SglangFacts().boot,
            SglangFacts("\"version\":\"0.5.23\"", "\"version\":\"0.5.24\"").boot);
  EXPECT_NE(SglangFacts().boot, SglangFacts("66.06", "66.07").boot);
}

TEST(SglangInfo, NamesTheFlagThatIsMissingOrWrong) {
  const struct {
    const char *from, *to, *reason, *remedy;
  } cases[] = {
      {"\"enable_lora\":true", "\"enable_lora\":false", "ENGINE_LORA_DISABLED", "--enable-lora"},
      {"\"dp_size\":1", "\"dp_size\":2", "ENGINE_DP_UNSUPPORTED", "--dp-size 1"},
      {"worker_num\":1", "worker_num\":2", "ENGINE_TOKENIZER_WORKERS", "--tokenizer-worker-num 1"},
      {"\"auto\"", "\"dummy\"", "ENGINE_LOAD_FORMAT", "--load-format"},
      {"startup_time", "other_time", "ENGINE_VERSION_UNSUPPORTED", "startup_time"},
  };
  for (const auto& c : cases) {
    const EngineFacts facts = SglangFacts(c.from, c.to);
    ASSERT_THAT(ReasonsOf(facts), ElementsAre(c.reason));
    EXPECT_THAT(facts.problems[0].remedy, HasSubstr(c.remedy));
  }
}

TEST(SglangInfo, AttentionGroupsWereReplicasThatTakeAdapters) {
  const auto reasons = [](const std::string& version, const std::string& sizes) {
    std::string info =
        Replaced(kSglangInfo, R"("enable_dp_attention":false)", R"("enable_dp_attention":true)");
    info = Replaced(Replaced(info, R"("dp_size":1)", sizes), "0.5.23", version);
    return ReasonsOf(ParseSglangInfo({200, info}).value());
  };
  EXPECT_THAT(reasons("0.5.17", R"("dp_size":4)"), IsEmpty());
  EXPECT_THAT(reasons("0.5.16", R"("dp_size":4)"), ElementsAre("ENGINE_DP_UNSUPPORTED"));
  EXPECT_THAT(reasons("0.5.23", R"("dp_size":2,"attn_dp_size":4)"),
              ElementsAre("ENGINE_DP_UNSUPPORTED"))
      << "replicas, each of several groups";
  EXPECT_THAT(reasons("0.5.23", R"("dp_size":1,"attn_dp_size":4)"), IsEmpty());
}

TEST(SglangInfo, AttentionGroupsPinAllButOneSlotOfABatch) {
  const EngineFacts facts = SglangFacts("\"dp_size\":1", R"("dp_size":1,"attn_dp_size":4)");
  EXPECT_TRUE(facts.pins_adapters);
  EXPECT_EQ(facts.limits.slots, facts.limits.batch_slots - 1);
  EXPECT_FALSE(SglangFacts().pins_adapters);
  EXPECT_THAT(ReasonsOf(ParseSglangInfo({200, R"({"enable_lora":true,"max_loras_per_batch":1,
                                              "attn_dp_size":2,"startup_time":{"a":1}})"})
                            .value()),
              ElementsAre("ENGINE_DP_UNSUPPORTED"));
}

TEST(SglangInfo, TellsOnHowManyNodesItRuns) {
  EXPECT_EQ(SglangFacts().nodes, 1u);
  EXPECT_EQ(SglangFacts("\"dp_size\":1", "\"dp_size\":1,\"nnodes\":2").nodes, 2u);
}

TEST(SglangInfo, AllModulesMeansNoLimit) {
  EXPECT_THAT(SglangFacts(R"(["q_proj","k_proj"])", R"(["all"])").limits.engine_modules, IsEmpty());
}

TEST(SglangInfo, AnotherServersPageIsUnknown) {
  EXPECT_EQ(ReasonOf(ParseSglangInfo({200, "{}"}).status()), "ENGINE_UNKNOWN");
  EXPECT_EQ(ReasonOf(ParseSglangInfo({200, "<html>"}).status()), "ENGINE_UNKNOWN");
  EXPECT_EQ(ReasonOf(ParseSglangInfo({401, R"({"error":"Unauthorized"})"}).status()),
            "ENGINE_UNAUTHORIZED");
}

TEST(SglangLoads, AreSummedOverReplicas) {
  const auto load = ParseSglangOccupancy(
      {200, R"({"loads":[{"num_running_reqs":2,"num_waiting_reqs":1},{"num_running_reqs":3}]})"});
  EXPECT_EQ(load->running, 5u);
  EXPECT_EQ(load->waiting, 1u);
  EXPECT_FALSE(load->worked.has_value());
  EXPECT_FALSE(ParseSglangOccupancy({200, R"({"loads":[]})"}).ok());
  EXPECT_EQ(ParseSglangOccupancy({200, R"({"loads":[{"timestamp":2.5},{"timestamp":1}]})"})->worked,
            3.5)
      << "any of several schedulers may have gone on";
}

TEST(Models, AdaptersAreTheCardsWithAParent) {
  const auto models = ParseModels({200, R"({"object":"list","data":[
    {"id":"base","owned_by":"vllm","root":"/m","parent":null},
    {"id":"alias","owned_by":"vllm","root":"/m","parent":null},
    {"id":"p-v1","owned_by":"vllm","root":"/a/v1","parent":"base"}]})"});
  EXPECT_THAT(models->base_models, ElementsAre("base", "alias")) << "every served name";
  EXPECT_EQ(models->root, "/m");
  EXPECT_EQ(models->owned_by, "vllm");
  EXPECT_THAT(models->adapters, ElementsAre(Pair(EngineName("p-v1"), "/a/v1")));
  EXPECT_EQ(ReasonOf(ParseModels({200, "[]"}).status()), "ENGINE_UNKNOWN");
}

constexpr char kVllmMetrics[] = R"(# HELP process_start_time_seconds Start time of the process.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79525667783e+09
vllm:num_requests_running{engine="0",model_name="ba} se"} 2.0
vllm:num_requests_running{engine="1",model_name="base"} 1.0
vllm:num_requests_waiting{engine="0",model_name="base"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
)";

TEST(VllmMetrics, TellBootAndLoad) {
  EXPECT_EQ(ParseVllmBoot({200, kVllmMetrics}).value(), BootId("vllm-1795256677830"));
  const auto load = ParseVllmOccupancy({200, kVllmMetrics});
  EXPECT_EQ(load->running, 3u);
  EXPECT_EQ(load->waiting, 4u);
  EXPECT_FALSE(load->worked.has_value());
  const std::string tokens = std::string(kVllmMetrics) +
                             "vllm:prompt_tokens_total{engine=\"0\"} 3.0\n"
                             "vllm:generation_tokens_total{engine=\"0\"} 4.0\n"
                             "vllm:generation_tokens_total{engine=\"1\"} 5.0\n";
  EXPECT_EQ(ParseVllmOccupancy({200, tokens})->worked, 12);
  EXPECT_EQ(ReasonOf(ParseVllmBoot({200, ""}).status()), "ENGINE_VERSION_UNSUPPORTED");
  EXPECT_EQ(ReasonOf(ParseVllmOccupancy({200, ""}).status()), "ENGINE_METRICS_DISABLED");
}

TEST(VllmMetrics, OfNumbersThatCountNothingTellNothing) {
  for (const char* number : {"1e300", "-1", "NaN", "Inf", "18446744073709551616"}) {
    const std::string sample = std::string("{engine=\"0\"} ") + number + "\n";
    EXPECT_EQ(
        ReasonOf(ParseVllmBoot({200, std::string("process_start_time_seconds ") + number + "\n"})
                     .status()),
        "ENGINE_VERSION_UNSUPPORTED")
        << number;
    EXPECT_EQ(ReasonOf(ParseVllmOccupancy({200, "vllm:num_requests_running" + sample +
                                                    "vllm:num_requests_waiting" + sample})
                           .status()),
              "ENGINE_METRICS_DISABLED")
        << number;
  }
}

TEST(VllmMetrics, TellSleepOfAnyLevelAndOfAnyEngine) {
  const auto asleep = [](const std::string& first, const std::string& second) {
    const std::string sample = R"(vllm:engine_sleep_state{engine="0",sleep_state="awake"} )";
    const std::string other = R"(vllm:engine_sleep_state{engine="1",sleep_state="awake"} )";
    const std::string level =
        R"(vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0)";
    EngineFacts facts;
    AddVllmMetrics(sample + first + "\n" + other + second + "\n" + level + "\n", facts);
    return facts.asleep;
  };
  EXPECT_EQ(asleep("1.0", "1.0"), false);
  EXPECT_EQ(asleep("0.0", "0.0"), true);
  EXPECT_EQ(asleep("1.0", "0.0"), true);
  EXPECT_EQ(asleep("0.0", "1.0"), true);
  EngineFacts silent;
  AddVllmMetrics("# TYPE vllm:num_requests_running gauge\n", silent);
  EXPECT_EQ(silent.asleep, std::nullopt) << "it does not say";
}

TEST(VllmMetrics, TellLoraAndItsBatchWithoutDevMode) {
  const std::string stats = "# TYPE vllm:num_requests_running gauge\n";
  const std::string lora = stats + "# TYPE vllm:lora_requests_info gauge\n";
  const auto facts = [](const std::string& exposition) {
    EngineFacts added;
    AddVllmMetrics(exposition, added);
    return added;
  };
  EXPECT_THAT(ReasonsOf(facts(stats)), ElementsAre("ENGINE_LORA_DISABLED"));
  EXPECT_EQ(facts(lora).problems, facts(lora).warnings);  // none
  EXPECT_EQ(facts(lora).limits.batch_slots, 0u);
  const std::string sample =
      R"(vllm:lora_requests_info{max_lora="4",running_lora_adapters="max_lora=9"} 1.7e+09)";
  EXPECT_EQ(facts(lora + sample).limits.batch_slots, 4u);
  EXPECT_THAT(facts("").problems, IsEmpty()) << "without statistics nothing is known";
  ASSERT_EQ(facts("").warnings.size(), 1u);
  EXPECT_EQ(facts("").warnings[0].reason, "ENGINE_METRICS_DISABLED");
}

TEST(VllmMetrics, AreSiftedHoweverTheyCome) {
  const std::string page = std::string(kVllmMetrics) +
                           "# TYPE vllm:num_requests_running gauge\n"
                           "# TYPE vllm:lora_requests_info gauge\n"
                           "vllm:lora_requests_info{running_lora_adapters=\"a\"} 2.0\n"
                           "vllm:prompt_tokens_total{engine=\"0\"} 3.0\n"
                           "vllm:lora_requests_info{running_lora_adapters=\"b\"} 3.0\n"
                           "vllm:lora_requests_info{running_lora_adapters=\"c\"} 1.0\n"
                           "vllm:generation_tokens_total{engine=\"0\"} 4.0\n"
                           "vllm:engine_sleep_state{sleep_state=\"awake\"} 0.0\n";
  std::string whole = page, bytes;
  SiftVllmMetrics(whole);
  for (const char byte : page) {
    bytes += byte;
    SiftVllmMetrics(bytes);
  }
  EXPECT_LT(whole.size(), page.size());
  for (const std::string& sifted : {whole, bytes}) {
    EXPECT_EQ(ParseVllmBoot({200, sifted}).value(), ParseVllmBoot({200, page}).value());
    const auto load = ParseVllmOccupancy({200, sifted});
    EXPECT_EQ(load->running, 3u);
    EXPECT_EQ(load->waiting, 4u);
    EXPECT_EQ(load->worked, 7);
    EngineFacts facts;
    AddVllmMetrics(sifted, facts);
    EXPECT_EQ(facts.asleep, true);
    EXPECT_TRUE(facts.problems.empty() && facts.warnings.empty());
  }
  const auto at = whole.find("vllm:lora_requests_info{");
  EXPECT_EQ(whole.find("\"b\"", at), whole.find("=\"", at) + 1) << "the newest is kept alone";
}

// What the engine is busy with, by its metrics; "-" where it does not say.
std::string BusyWith(const std::string& exposition) {
  const std::string counts =
      "vllm:num_requests_running{engine=\"0\"} 2.0\n"
      "vllm:num_requests_waiting{engine=\"0\"} 1.0\n";
  const auto load = ParseVllmOccupancy({200, counts + exposition});
  EXPECT_EQ(load->running + load->waiting, 3u);
  if (!load->names.has_value()) return "-";
  std::string text;
  for (const EngineName& name : *load->names) text += (text.empty() ? "" : " ") + name.value;
  return text;
}

TEST(VllmMetrics, TellTheAdaptersOfRunningAndWaitingRequestsByTheNewestSeries) {
  const std::string declared = "# TYPE vllm:lora_requests_info gauge\n";
  const auto series = [](const std::string& running, const std::string& waiting, const char* at) {
    return R"(vllm:lora_requests_info{max_lora="4",running_lora_adapters=")" + running +
           R"(",waiting_lora_adapters=")" + waiting + "\"} " + at + "\n";
  };
  EXPECT_EQ(BusyWith(declared), "") << "no request has named one yet";
  EXPECT_EQ(BusyWith(declared + series("a,b", "b,c", "1.763786123456701e+09")), "a b c");
  EXPECT_EQ(
      BusyWith(declared + series("a", "a", "1.763786123456701e+09") +
               series("", "", "1.763786123456702e+09") + series("b", "", "1.763786123456700e+09")),
      "")
      << "an old series stays and says nothing";
  EXPECT_EQ(BusyWith(""), "-");
  EXPECT_EQ(BusyWith(declared + "vllm:num_requests_running{engine=\"1\"} 0.0\n"), "-")
      << "engines that share the series hide each other's adapters";
}

EngineFacts VllmFacts(const HttpReply& server_info) {
  EngineFacts facts;
  AddVllmServerInfo(server_info, facts);
  return facts;
}

TEST(VllmServerInfo, SeveralHttpServersAreRefused) {
  const auto facts = [](const std::string& layout) {
    return VllmFacts(
        {200, R"({"vllm_config":{"lora_config":{},"parallel_config":)" + layout + "}}"});
  };
  EXPECT_THAT(facts(R"({"_api_process_count":1})").problems, IsEmpty());
  EXPECT_THAT(facts("{}").problems, IsEmpty());
  const EngineFacts several = facts(R"({"_api_process_count":2})");
  ASSERT_THAT(ReasonsOf(several), ElementsAre("ENGINE_API_SERVERS"));
  EXPECT_THAT(several.problems[0].remedy, HasSubstr("--api-server-count 1"));
}

TEST(VllmServerInfo, TellsLimits) {
  const EngineFacts facts = VllmFacts({200, R"({"vllm_config":{"lora_config":
    {"max_lora_rank":16,"max_loras":4,"max_cpu_loras":8,"target_modules":null}}})"});
  EXPECT_EQ(facts.limits.rank_limit, 16u);
  EXPECT_EQ(facts.limits.slots, 8u);
  EXPECT_EQ(facts.limits.batch_slots, 4u);
  EXPECT_THAT(facts.problems, IsEmpty());
}

TEST(VllmServerInfo, TellsOnHowManyNodesItRuns) {
  const auto nodes = [](const std::string& config) {
    return VllmFacts({200, R"({"vllm_config":{"lora_config":{})" + config + "}}"}).nodes;
  };
  EXPECT_EQ(nodes(""), 1u);
  EXPECT_EQ(nodes(R"(,"parallel_config":{"nnodes":4})"), 4u);
}

TEST(VllmServerInfo, TellsWhatIsWrongWithItOnACpu) {
  const auto is_wrong = [](const std::string& version, const std::string& device) {
    EngineFacts facts;
    facts.version = version;
    AddVllmServerInfo({200, R"({"vllm_config":{"lora_config":{},"device_config":
      {"device":")" + device + "\"}}}"},
                      facts);
    EXPECT_EQ(facts.device, device);
    EXPECT_EQ(facts.dies_of_prompt_logprobs, facts.mixes_base);
    return facts.mixes_base;
  };
  EXPECT_TRUE(is_wrong("0.32.0", "cpu"));
  EXPECT_TRUE(is_wrong("0.27.1", "cpu"));
  EXPECT_FALSE(is_wrong("0.32.0", "cuda"));
  EXPECT_FALSE(is_wrong("0.33.0", "cpu")) << "nothing is known of it";
  EXPECT_FALSE(is_wrong("", "cpu"));
}

TEST(VllmServerInfo, WithoutALoraConfigLoraIsOff) {
  EXPECT_THAT(ReasonsOf(VllmFacts({200, R"({"vllm_config":{"lora_config":null}})"})),
              ElementsAre("ENGINE_LORA_DISABLED"));
}

TEST(VllmServerInfo, WithoutTheRouteOrWithABrokenOneLimitsAreUnknownAndThatIsSaid) {
  const struct {
    HttpReply reply;
    const char *reason, *remedy;
  } cases[] = {{{404, R"({"detail":"Not Found"})"},
                "ENGINE_DEV_MODE_OFF",
                "only AReaL's server can be paused"},
               {{500, R"({"error":{"message":"'NoneType' ..."}})"}, "ENGINE_REPLY_INVALID", "500"}};
  for (const auto& c : cases) {
    const EngineFacts facts = VllmFacts(c.reply);
    EXPECT_EQ(facts.limits, fleet::EngineLimits());
    EXPECT_THAT(facts.problems, IsEmpty());
    ASSERT_EQ(facts.warnings.size(), 1u);
    EXPECT_EQ(facts.warnings[0].reason, c.reason);
    EXPECT_THAT(facts.warnings[0].remedy, HasSubstr(c.remedy));
  }
}

TEST(Errors, AreFoundWhereverTheEngineKeepsThem) {
  EXPECT_EQ(ErrorText({400, R"({"success":false,"error_message":"no rank"})"}), "no rank");
  EXPECT_EQ(ErrorText({400, R"({"object":"error","message":"no prompt","code":400})"}),
            "no prompt");
  EXPECT_EQ(ErrorText({404, R"({"error":{"message":"no model","code":404}})"}), "no model");
  EXPECT_EQ(ErrorText({401, R"({"error":"Unauthorized"})"}), "Unauthorized");
  EXPECT_EQ(ErrorText({404, R"({"detail":"Not Found"})"}), "Not Found");
  EXPECT_EQ(ErrorText({400, "Flush cache failed.\n"}), "Flush cache failed.\n");
  EXPECT_EQ(ErrorText({502, ""}), "HTTP status 502");
  EXPECT_LT(ErrorText({500, std::string(100'000, 'x')}).size(), 600u);
}

TEST(Errors, AreUtf8WhateverTheEngineSays) {
  std::string words;
  for (int i = 0; i < 300; ++i) words += "é";
  EXPECT_EQ(ErrorText({400, words}), words.substr(0, 500) + "...");
  EXPECT_EQ(ErrorText({400, "x" + words}), "x" + words.substr(0, 498) + "...");
  EXPECT_EQ(ErrorText({400, "caf\xe9"}), "caf\uFFFD");
}

TEST(Errors, KnowAMissingAdapterFromAMissingRoute) {
  const HttpReply sglang{
      400,
      R"_({"error_message":"LoRA with name x does not exist. Loaded LoRAs: odict_keys([])"})_"};
  const HttpReply vllm{
      404, R"({"error":{"message":"The lora adapter 'x' cannot be found.","code":404}})"};
  const HttpReply route{404, R"({"detail":"Not Found"})"};
  EXPECT_TRUE(IsUnknownAdapter(EngineKind::kSglang, sglang));
  EXPECT_TRUE(IsUnknownAdapter(EngineKind::kVllm, vllm));
  EXPECT_FALSE(IsUnknownAdapter(EngineKind::kVllm, route));
  EXPECT_FALSE(IsUnknownAdapter(EngineKind::kSglang, route));
  EXPECT_TRUE(IsMissingRoute(route));
  EXPECT_FALSE(IsMissingRoute(vllm));
}

TEST(Errors, LoraSwitchedOffIsSaidWithTheFlag) {
  const auto status = StatusOfRefusal(
      "load x",
      {500,
       R"({"error":{"message":"Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA."}})"});
  EXPECT_EQ(ReasonOf(status), "ENGINE_LORA_DISABLED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-cpu-loras"));
}

TEST(BaseModel, VllmTellsItsConfigAsAnObjectOrAsPythonPrintsIt) {
  EngineFacts facts;
  AddVllmServerInfo({200, R"({"vllm_config":{"lora_config":{},"model_config":
    {"revision":"v2","hf_text_config":"LlamaConfig {\n  \"hidden_size\": 128\n}\n"}}})"},
                    facts);
  EXPECT_EQ(facts.model_revision, "v2");
  EXPECT_THAT(facts.model_config, HasSubstr("{\n  \"hidden_size\": 128"));
  AddVllmServerInfo({200, R"({"vllm_config":{"lora_config":{},"model_config":
    {"hf_config":{"hidden_size":128}}}})"},
                    facts);
  EXPECT_EQ(facts.model_config, R"({"hidden_size":128})");
}

TEST(EndOf, GoesByTheCodeWhateverTheReasonSays) {
  using Code = absl::StatusCode;
  const auto end = [](Code code) { return EndOf(Error(code, "ENGINE_REFUSED", "ENGINE_FAILED")); };
  EXPECT_EQ(EndOf(absl::OkStatus()), End::kOk);
  EXPECT_EQ(end(Code::kInvalidArgument), End::kRefused);
  EXPECT_EQ(end(Code::kUnavailable), End::kUnsent);
  EXPECT_EQ(end(Code::kAborted), End::kUnsent);
  EXPECT_EQ(end(Code::kUnknown), End::kBroken);
  EXPECT_EQ(end(Code::kInternal), End::kBroken);
  EXPECT_EQ(end(Code::kDeadlineExceeded), End::kTimedOut);
  for (const Code code : {Code::kFailedPrecondition, Code::kAlreadyExists, Code::kNotFound,
                          Code::kUnimplemented, Code::kUnauthenticated}) {
    EXPECT_EQ(end(code), End::kFailed);
  }
  EXPECT_EQ(EndOf(JudgeAlreadyLoaded({}, EngineName("p-v1"), "/a")), End::kFailed);
}

TEST(AlreadyLoaded, IsSuccessOnlyAtOurPath) {
  const EngineName name("p-v1");
  EXPECT_TRUE(JudgeAlreadyLoaded({{name, "/a"}}, name, "/a").ok());
  const auto taken = JudgeAlreadyLoaded({{name, "/b"}}, name, "/a");
  EXPECT_EQ(ReasonOf(taken), "ENGINE_NAME_TAKEN");
  EXPECT_THAT(std::string(taken.message()), AllOf(HasSubstr("/a"), HasSubstr("/b")));
  EXPECT_EQ(ReasonOf(JudgeAlreadyLoaded({}, name, "/a")), "ENGINE_LOAD_UNSETTLED");
}

// Recorded from torch 2.13 and safetensors 0.8 on a host without memory, as SGLang 0.5.23 has them.
TEST(StatusOfLoad, AHostWithoutMemoryIsNotTheAdaptersFault) {
  for (const char* words :
       {"[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 281474976710656 bytes. Error code 12 (Cannot allocate memory)",
        "Cannot allocate memory (os error 12)", "No such device (os error 19)",
        "CUDA error: out of memory"}) {
    const Json body = {{"error_message", words}};
    const absl::Status status = StatusOfLoad(EngineName("a"), {400, body.dump()});
    EXPECT_EQ(ReasonOf(status), "ENGINE_LOAD_FAILED") << words;
    EXPECT_EQ(EndOf(status), End::kFailed) << words;
  }
  const Json body = {{"error_message", "Error while deserializing header: header too small"}};
  EXPECT_EQ(EndOf(StatusOfLoad(EngineName("a"), {400, body.dump()})), End::kRefused);
}

}  // namespace
}  // namespace lorry::engines
