"""Link prediction: training links, held-out links and message-passing edges."""
