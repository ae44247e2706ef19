// Network of the aggregate kernel: duplicator, n scatter units, n x n queues, n gather units; cycle-equivalent to
// tools/predictions/aggregate_network.py. PES is a power of two. Values are integers, so that the order of additions
// does not matter.
module aggregate_network #(
    parameter int PES = 4,
    parameter int DEPTH_MOST = 32,
    parameter int LATENCY_MOST = 8,
    parameter int ROW_BITS = 16,
    parameter int CHUNK_BITS = 8,
    parameter int VALUE_BITS = 32,
    parameter int WORDS = 1024
) (
    input  logic clk,
    input  logic rst,
    input  logic [$clog2(DEPTH_MOST + 1) - 1:0] depth,
    input  logic [$clog2(LATENCY_MOST + 1) - 1:0] latency,
    input  logic [CHUNK_BITS - 1:0] chunks,
    // Group at the duplicator: valid bits, destination rows and weights of its edges, and the source row's value of
    // `chunk`.
    input  logic group_valid,
    input  logic [PES - 1:0] group_edges,
    input  logic [PES - 1:0][ROW_BITS - 1:0] group_rows,
    input  logic [PES - 1:0][VALUE_BITS - 1:0] group_weights,
    input  logic [VALUE_BITS - 1:0] feature,
    output logic [CHUNK_BITS - 1:0] chunk,
    output logic group_done,
    output logic busy,
    input  logic [ROW_BITS - 1:0] read_row,
    input  logic [CHUNK_BITS - 1:0] read_chunk,
    output logic [VALUE_BITS - 1:0] read_value
);
    localparam int MESSAGE_BITS = ROW_BITS + CHUNK_BITS + VALUE_BITS;
    localparam int BANK_BITS = $clog2(PES);
    localparam int ADDRESS_BITS = $clog2(WORDS);

    logic [PES - 1:0] taken;  // messages of this group and chunk that the units have accepted
    logic [PES - 1:0] takes;
    logic [PES - 1:0] scatter_busy;
    logic [PES - 1:0] gather_busy;
    logic [PES - 1:0][PES - 1:0] full, push;  // [scatter][gather]
    logic [PES - 1:0][PES - 1:0] empty, pop;  // [gather][scatter]
    logic [PES - 1:0][MESSAGE_BITS - 1:0] message;
    logic [PES - 1:0][PES - 1:0][MESSAGE_BITS - 1:0] heads;
    logic [PES - 1:0][VALUE_BITS - 1:0] read_values;
    logic [ADDRESS_BITS - 1:0] read_address;
    logic all_taken;

    assign all_taken = group_valid && (taken | takes) == group_edges;
    assign group_done = all_taken && chunk == chunks - 1'b1;
    assign busy = group_valid || |scatter_busy || !(&empty) || |gather_busy;
    assign read_address = ADDRESS_BITS'((int'(read_row) / PES) * int'(chunks) + int'(read_chunk));
    assign read_value = read_values[read_row[BANK_BITS - 1:0]];

    always_ff @(posedge clk) begin
        if (rst) begin
            taken <= '0;
            chunk <= '0;
        end else if (all_taken) begin
            taken <= '0;
            chunk <= group_done ? '0 : chunk + 1'b1;
        end else taken <= taken | takes;
    end

    for (genvar s = 0; s < PES; s++) begin : scatter
        scatter_unit #(
            .PES(PES), .ROW_BITS(ROW_BITS), .CHUNK_BITS(CHUNK_BITS), .VALUE_BITS(VALUE_BITS)
        ) unit (
            .clk, .rst,
            .offered(group_valid && group_edges[s] && !taken[s]),
            .takes(takes[s]),
            .row(group_rows[s]), .chunk, .weight(group_weights[s]), .feature,
            .full(full[s]), .push(push[s]), .message(message[s]), .busy(scatter_busy[s])
        );
    end

    for (genvar g = 0; g < PES; g++) begin : gather
        for (genvar s = 0; s < PES; s++) begin : from
            message_queue #(.MOST(DEPTH_MOST), .WIDTH(MESSAGE_BITS)) queue (
                .clk, .rst, .depth,
                .push(push[s][g]), .data(message[s]), .full(full[s][g]),
                .pop(pop[g][s]), .empty(empty[g][s]), .head(heads[g][s])
            );
        end
        gather_unit #(
            .PES(PES), .ROW_BITS(ROW_BITS), .CHUNK_BITS(CHUNK_BITS), .VALUE_BITS(VALUE_BITS),
            .LATENCY_MOST(LATENCY_MOST), .WORDS(WORDS)
        ) unit (
            .clk, .rst, .latency, .chunks,
            .empty(empty[g]), .heads(heads[g]), .pop(pop[g]), .busy(gather_busy[g]),
            .read_address, .read_value(read_values[g])
        );
    end
endmodule
