// Accumulates into one bank: accepts one message per cycle, round robin over its queues, and adds it. The sum leaves
// the adder `latency` (1..LATENCY_MOST) cycles after the message was accepted; until then, messages to the same address
// are skipped (read-after-write hazard).
module gather_unit #(
    parameter int PES = 4,
    parameter int ROW_BITS = 16,
    parameter int CHUNK_BITS = 8,
    parameter int VALUE_BITS = 32,
    parameter int LATENCY_MOST = 8,
    parameter int WORDS = 1024
) (
    input  logic clk,
    input  logic rst,
    input  logic [$clog2(LATENCY_MOST + 1) - 1:0] latency,
    input  logic [CHUNK_BITS - 1:0] chunks,
    input  logic [PES - 1:0] empty,
    input  logic [PES - 1:0][ROW_BITS + CHUNK_BITS + VALUE_BITS - 1:0] heads,
    output logic [PES - 1:0] pop,
    output logic busy,
    input  logic [$clog2(WORDS) - 1:0] read_address,
    output logic [VALUE_BITS - 1:0] read_value
);
    localparam int BANK_BITS = $clog2(PES);
    localparam int ADDRESS_BITS = $clog2(WORDS);
    localparam int STAGES = LATENCY_MOST - 1;

    logic [VALUE_BITS - 1:0] bank [WORDS];

    // Adder pipeline: stage i contains the message that was accepted i + 1 cycles ago.
    logic [STAGES - 1:0] stage_valid;
    logic [ADDRESS_BITS - 1:0] stage_address [STAGES];
    logic [VALUE_BITS - 1:0] stage_sum [STAGES];

    logic [BANK_BITS - 1:0] pointer;
    logic [PES - 1:0] eligible;
    logic [ADDRESS_BITS - 1:0] addresses [PES];
    logic granted;
    logic [BANK_BITS - 1:0] choice;
    logic [VALUE_BITS - 1:0] sum;

    always_comb begin
        for (int s = 0; s < PES; s++) begin
            addresses[s] = ADDRESS_BITS'(
                (int'(heads[s][CHUNK_BITS + VALUE_BITS +: ROW_BITS]) / PES) * int'(chunks)
                + int'(heads[s][VALUE_BITS +: CHUNK_BITS]));
            eligible[s] = !empty[s];
            for (int i = 0; i < STAGES; i++)
                if (i + 1 < int'(latency) && stage_valid[i] && stage_address[i] == addresses[s]) eligible[s] = 1'b0;
        end
        granted = 1'b0;
        choice = '0;
        for (int i = PES - 1; i >= 0; i--) begin
            if (eligible[BANK_BITS'(int'(pointer) + i)]) begin
                granted = 1'b1;
                choice = BANK_BITS'(int'(pointer) + i);
            end
        end
        pop = '0;
        pop[choice] = granted;
        sum = bank[addresses[choice]] + heads[choice][VALUE_BITS - 1:0];
        busy = 1'b0;
        for (int i = 0; i < STAGES; i++)
            if (i + 1 < int'(latency) && stage_valid[i]) busy = 1'b1;
    end

    assign read_value = bank[read_address];

    always_ff @(posedge clk) begin
        if (rst) begin
            pointer <= '0;
            stage_valid <= '0;
            for (int i = 0; i < WORDS; i++) bank[i] <= '0;
        end else begin
            if (granted) pointer <= choice + 1'b1;
            stage_valid <= {stage_valid[STAGES - 2:0], granted};
            stage_address[0] <= addresses[choice];
            stage_sum[0] <= sum;
            for (int i = 1; i < STAGES; i++) begin
                stage_address[i] <= stage_address[i - 1];
                stage_sum[i] <= stage_sum[i - 1];
            end
            if (latency == 1) begin
                if (granted) bank[addresses[choice]] <= sum;
            end else if (stage_valid[latency - 2]) bank[stage_address[latency - 2]] <= stage_sum[latency - 2];
        end
    end
endmodule
